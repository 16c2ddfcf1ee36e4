"A comparison is paired, keeps within its minutes, goes on after a kill, and hands out the best as a directory"
import os, shutil, signal
from dataclasses import replace
import numpy as np, pandas as pd, pytest, torch
from fastformers.cli import main
from fastformers.compare.board import Leaderboard
from fastformers.compare.curve import LabelCurve, label_curve, nested_order
from fastformers.compare.encoders import compare_encoders
from fastformers.compare.entries import Entry, OutOfTime, entries
from fastformers.compare.leaderboard import leaderboard
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
from fastformers.learner.evaluate import row_scores
from fastformers.tasks.core import SingleLabel
from fastformers.tasks.tags import Tags
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.recipe import read_recipe
from fastformers.ulmfit.stage import fine_tune_lm

df = intents(120)
pytestmark = pytest.mark.usefixtures('clock') # minutes are no longer on a busy machine
words = ['largest class','TF-IDF']
scores = ['score','low','high','against_tfidf','fits']

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp('body')/'tiny'
    fine_tune_lm(df, tiny_arch('bert'), path, tok=tiny_tok('bert'), epochs=.1, seq_len=32)
    return path

def spy(seen, name='spy', **kwargs):
    "An entry that keeps the rows it was given"
    def fit(rows):
        seen.append(rows)
        return TextBaseline.fit(rows.texts, rows.labels, rows.task)
    return Entry(name, fit, **kwargs)

def quick(*names):
    "The entries `names`, with networks that train for two epochs instead of 150 steps"
    def short(e): return replace(e, recipe={**e.recipe, 'classifier':dict(epochs=2.) | e.recipe.get('classifier', {})})
    return [short(entries[o]) if 'frozen probe' in entries[o].needs else o for o in names]

def test_all_entries_score_the_same_rows_and_train_on_none_of_them():
    seen = []
    board = leaderboard(df, entries=['largest class',spy(seen)], minutes=1)
    held = [{*df.text.iloc[at]} for _,at in board.folds]
    assert {*df.text}==set.union(*held) and all(not {*r.texts}&h for r,h in zip(seen, held))
    assert np.array_equal(np.isnan(board.rows('spy')), np.isnan(board.rows('largest class')))
    assert len(seen)==4 and len(seen[-1].df)==len(df)                       # the last on all rows

def test_an_entry_with_a_need_that_does_not_exist_is_refused():
    from fastformers.compare.entries import entry
    with pytest.raises(ValueError, match="mine needs 'unlabeled'.*did you mean unlabelled"): entry('mine', ('unlabeled',))(lambda rows: None)
    assert 'mine' not in entries
    with pytest.raises(ValueError, match="spy needs 'TFIDF'.*did you mean TF-IDF"): leaderboard(df, entries=[spy([], needs=('TFIDF',))], minutes=1)

def test_test_rows_are_scored_and_groups_stay_together():
    seen,test = [],intents().query('split=="test"')[:40]
    board = leaderboard(df, test=test, entries=[spy(seen)], minutes=1)
    assert board.rows('spy').shape==(3,40) and not np.isnan(board.rows('spy')).any() and all(len(o.df)==120 for o in seen)
    seen.clear()
    board = leaderboard(df.assign(who=df.index//6), entries=[spy(seen)], minutes=1, group_col='who')
    for r,(_,at) in zip(seen, board.folds): assert not {*r.df.who}&{*(at//6)}

@pytest.mark.parametrize('place', range(1,6))
def test_a_killed_comparison_goes_on(place, tmp_path):
    "In five places: before the first fit, between fits, between entries, and in the training of the winner"
    fits = [0]
    def fit(rows):
        fits[0] += 1
        if fits[0]==place and not (tmp_path/'again').exists(): os.kill(os.getpid(), signal.SIGKILL)
        return TextBaseline.fit(*rows.part(False), rows.task) # all rows that an entry sees train
    run = dict(minutes=1, seeds=(1,2), entries=[Entry('a', fit), 'largest class', Entry('b', fit)])
    pid = os.fork()
    if not pid:
        try: leaderboard(df, path=tmp_path/'run', **run)
        finally: os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1])==signal.SIGKILL
    (tmp_path/'again').touch()
    if place>1:
        with pytest.raises(FileExistsError, match='resume=True'): leaderboard(df, path=tmp_path/'run', **run)
    with pytest.raises(ValueError, match='another run'): leaderboard(df[:90], path=tmp_path/'run', resume=True, **run)
    again = leaderboard(df, path=tmp_path/'run', resume=True, **run)
    pd.testing.assert_frame_equal(again.table[scores], leaderboard(df, **run).table[scores])
    assert from_hf(tmp_path/'run/best')('a text')[0]['label'] in again.task.labels
    assert [*pd.read_csv(tmp_path/'run/leaderboard.csv').entry]==[*again.table.index]

def test_networks_are_compared_and_the_winner_opens(tiny, tmp_path):
    names = ['TF-IDF','frozen probe','all layers','mean','contrastive','stage 2 + all layers']
    more = [*intents(150, seed=1).text, *df.text]
    board = leaderboard(df[:60], unlabelled=more, archs=tiny, minutes=.4, seeds=(1,2), path=tmp_path/'run', entries=quick(*names))
    assert not [o for o in board.notes.values() if 'failed' in o] and {*names[:4]} <= {*board.scored}
    assert '60 that are equal to scored texts were dropped' in board.info['unlabelled texts']
    assert 'mean of' in board.words('mean') and board.price('mean')>=board.price(board.best_of("network"))
    best = from_hf(tmp_path/'run/best')
    assert np.allclose(best.scores(['is my card blocked']), board.best.scores(['is my card blocked']), atol=1e-5)
    html = (tmp_path/'run/report.html').read_text()
    assert 'Where it fails' in html and '## Where it fails' in (tmp_path/'run/report.md').read_text()
    assert 'data:image/png;base64' in html and board.sentences()[0].split(':')[0] in html
    assert not (tmp_path/'run/work').exists()

def test_the_winner_keeps_texts_for_novelty_and_new_classes(tiny, tmp_path):
    how = dict(archs=tiny, minutes=1, seeds=(1,2), path=tmp_path/'run', entries=['frozen probe'])
    board = leaderboard(df[:60], **how)
    shutil.rmtree(tmp_path/'run/best')
    leaderboard(df[:60], resume=True, **how) # the fits are read, and the winner is trained again
    best = from_hf(tmp_path/'run/best')
    assert len(best.kept.vectors)==60 and len(best.kept.distances)==len(board.folds[0][1]) # of texts that were new to the first seed
    assert best(['is my card blocked'], unknown=.2)[0].keys()>={'novelty','nearest'}
    assert 'new' in best.add_class('new', ['does it rain', 'will it snow']).labels

def test_the_recipe_is_that_of_the_network(tiny, tmp_path):
    board = leaderboard(df, archs=tiny, minutes=1, seeds=(1,2), path=tmp_path/'run', entries=['frozen probe'])
    recipe = read_recipe(tmp_path/'run/settings.ini')
    assert recipe.classifier.epochs==0 and recipe.model.arch==str(tiny) and board.winner=='frozen probe'

@pytest.mark.parametrize('change,words', [
    (lambda d: d.assign(label='one'), 'only the class'), (lambda d: d.assign(text='the same'), 'all rows have the same text'),
    (lambda d: d.assign(label=[f'row {i}' for i in range(len(d))]), 'occurs in one row, expected two rows or more'), (lambda d: d.drop(columns='label'), 'label')])
def test_rows_that_cannot_be_compared_are_refused(change, words):
    with pytest.raises(ValueError, match=words): leaderboard(change(df), entries=['TF-IDF'], minutes=1)

def test_two_rows_a_class():
    two = df.groupby('label').head(2)
    board = leaderboard(two, entries=words, minutes=1)
    assert [*board.table.fits]==[3,3] and len(board.y)==20

def test_too_few_minutes_leave_a_table_and_a_reason():
    def slow(rows): raise OutOfTime(3600)
    board = leaderboard(df, entries=['TF-IDF', Entry('slow', slow), Entry('after', slow, needs=('slow',))], minutes=.1)
    assert board.winner=='TF-IDF' and board.table.fits['slow']==0
    assert 'needs about 1 h' in board.table.note['slow'] and 'did not finish' in board.table.note['after']
    assert board.sentences()[-1].startswith('Not scored: slow (a fit needs')

@pytest.mark.parametrize('test,finished,mends', [(True,1,True), (True,2,False), (True,3,False), (False,1,False), (False,3,True)])
def test_a_winner_that_lacks_seeds_is_compared_on_the_rows_of_both(test, finished, mends):
    n,y = 42,torch.tensor([0,1]*21)
    folds = [(np.arange(0), np.arange(n) if test else np.arange(i, n, 3)) for i in range(3)]
    board = Leaderboard([Entry('TF-IDF'), Entry('all layers', needs=('arch',))], SingleLabel(['no','yes']), y, folds, (1,2,3))
    facts = {k:1. for k in ('seconds','cpu_seconds','answers_cpu_seconds','texts_a_second','memory_mb','size_mb','prepare_seconds','prepare_cpu_seconds')} | dict(cut=0, decides={})
    for name,wrong,seeds in (('TF-IDF',range(3, 33),3), ('all layers',range(2),finished)):
        says = torch.tensor([1-int(v) if i in wrong else int(v) for i,v in enumerate(y)])
        for seed,(_,at) in list(zip(board.seeds, folds))[:seeds]: board.fits[name,seed] = torch.eye(2)[says[at]],facts
    said = ' '.join(board.sentences())
    assert board.winner=='all layers' and ('It mends 30 of the rows that TF-IDF gets wrong, and breaks 2.' in said)==mends==('mends' in said)
    assert 'all layers' in board.to_markdown() and board.verdict().word

def test_a_failure_is_noted():
    def broken(rows): raise RuntimeError('no such layer')
    board = leaderboard(df, entries=['TF-IDF',Entry('broken', broken)], minutes=1)
    assert board.table.note['broken']=='failed: RuntimeError: no such layer' and board.winner=='TF-IDF'

def test_what_finished_is_not_lost(tmp_path):
    "Where no entry has all its seeds, and where the winner cannot be trained on all rows"
    def fit(rows):
        if len(seen)==n: raise OSError('no space')
        seen.append(rows)
        return TextBaseline.fit(rows.texts, rows.labels, rows.task)
    for n,path in ((1,tmp_path/'one'), (2,tmp_path/'two')):
        seen = []
        board = leaderboard(df, entries=[Entry('full disk', fit)], seeds=(1,2), minutes=1, path=path)
        assert board.best is None and 'no space' in board.table.note['full disk'] and (path/'leaderboard.csv').exists()
        assert (board.winner is None)==(n==1)!=(path/'report.html').exists()

def test_a_comparison_goes_on_with_the_same_held_out_rows(tmp_path):
    run = dict(entries=['largest class'], seeds=(1,2), minutes=1, path=tmp_path/'run')
    leaderboard(df, **run)
    for change in (dict(group_col='who'), dict(task='multi')):
        with pytest.raises(ValueError, match='another run'): leaderboard(df.assign(who=df.index//6), **run, resume=True, **change)

def test_a_comparison_that_begins_anew_leaves_no_old_classifier(tmp_path):
    run = dict(entries=['TF-IDF'], seeds=(1,2), minutes=1, path=tmp_path/'run')
    leaderboard(df, **run)
    shutil.rmtree(tmp_path/'run/fits')
    board = leaderboard(df.assign(label='new '+df.label), **run)
    assert board.best('pay a bill')[0]['label'].startswith('new ') and from_hf(tmp_path/'run/best')('pay a bill')[0]['label'].startswith('new ')

def test_words_that_a_network_did_not_read_have_no_span():
    task = Tags(['B-x','I-x','O'])
    pred,y = torch.zeros(1, 4, 3),torch.tensor([[0,1,2,2]])
    pred[0,0,0] = pred[0,1,1] = 1
    assert task.row_counts(pred, y).tolist()==[[1,1,1]]

def test_errors_are_shown_without_a_minus():
    rows = df.assign(label=df.text.str.len().astype(float))
    board = leaderboard(rows, entries=['largest class','TF-IDF'], seeds=(1,2), minutes=1)
    assert board.table.score.max()<0 and (board.shown()['relative squared error'].astype(float)>0).all()
    assert 'squared error 0' in board.sentences()[0] and '-' not in board.sentences()[0].replace('TF-IDF','')

def configs(at, *names):
    "Directories that hold no more than a config"
    for o in names: tiny_arch('bert').save_pretrained(at/o)
    return [str(at/o) for o in names]

@pytest.mark.parametrize('door', [lambda **k: leaderboard(df, archs=['nope'], minutes=1, **k), lambda **k: label_curve(df, arch='nope', sizes=[30,60], **k)], ids=['leaderboard','label_curve'])
def test_a_misspelt_checkpoint_is_found_before_training(door, monkeypatch):
    def fits(*args): raise AssertionError('it trains')
    monkeypatch.setattr(TextBaseline, 'fit', fits)
    with pytest.raises(OSError, match="No .* for 'nope'"): door()
    with pytest.raises(OSError, match="No .* for 'nope'"): door(entries=['TF-IDF','frozen probe'])

def test_hopeless_checkpoints_are_dropped(tmp_path):
    def probe(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task, max_terms=None if rows.plan['arch'].endswith('good') else 0)
    names = [Entry('frozen probe', probe, ('arch',)), Entry('tuned', probe, ('arch','frozen probe'))]
    board = leaderboard(df, archs=configs(tmp_path, 'bad', 'good'), entries=names, minutes=1)
    assert 'dropped' in board.notes['tuned (bad)'] and board.done('tuned (good)')

def test_the_two_best_checkpoints_train(tmp_path):
    "by their probes, also where the third is within the interval"
    def probe(rows): return TextBaseline.fit(rows.texts, rows.labels, rows.task)
    names = [Entry('frozen probe', probe, ('arch',)), Entry('tuned', probe, ('arch','frozen probe'))]
    board = leaderboard(df, archs=configs(tmp_path, *'abc'), entries=names, minutes=1)
    assert [board.done(f'tuned ({o})') for o in 'abc']==[True,True,False]
    assert board.notes['tuned (c)']=='dropped: frozen probe (c) is behind frozen probe (a) and frozen probe (b)'

def test_checkpoints_with_one_last_name_are_told_apart(tmp_path):
    (a,),(b,) = (configs(tmp_path/o, 'lm') for o in 'ab')
    board = leaderboard(df, archs=[a,b,a], entries=[Entry('frozen probe', lambda rows: TextBaseline.fit(rows.texts, rows.labels, rows.task), ('arch',))], minutes=1)
    assert [*board.plan]==[f'frozen probe ({o})' for o in (a,b)] and f'{a}, {b}' in board.info.values()

@pytest.mark.parametrize('labels,measure', [(lambda d: d.label+';'+(d.text.str.len()>40).map({True:'long',False:'short'}), 'F1 of a text'),
                                            (lambda d: d.text.str.len().astype(float), '-relative squared error')])
def test_several_labels_numbers_and_pairs(labels, measure, tiny):
    board = leaderboard(df.assign(label=labels(df), other='please'), entries=[*words,'frozen probe'], archs=tiny, minutes=1, seeds=(1,2), text_col=['text','other'])
    assert board.task.score_name==measure and board.best.pairs and [*board.table.fits]==[2,2,2]
    assert not board.plot().get_ylabel()=='' and board.score('TF-IDF')>board.score('largest class')

def test_tags_of_words_are_compared(tiny, tmp_path):
    rows = pd.DataFrame({'text':[o.split() for o in df.text[:60]]})
    rows['label'] = [['B-WH' if w in ('what','how') else 'O' for w in o] for o in rows.text]
    tried = dict(unlabelled=['what is it'], entries=quick(*words, 'frozen probe', 'all layers', 'mean'), archs=tiny, minutes=2, seeds=(1,2),
                 path=tmp_path/'run')
    board = leaderboard(rows, **tried)
    nothing = row_scores(board.task, torch.tensor([[[0.,1.]]]).expand(60,1,2), board.y) # no word in a span
    assert board.score('TF-IDF')>nothing.mean()+.2 and board.score('largest class')==pytest.approx(nothing.mean()) and not board.notes
    assert [*board.table.fits]==[2]*5 and not np.isnan(board.rows('mean')).all(0).any()
    assert from_hf(tmp_path/'run/best')(['what is this'])[0][0]['text']=='what'
    pd.testing.assert_frame_equal(leaderboard(rows, **tried, resume=True).table[scores], board.table[scores])
    curve = label_curve(rows, sizes=(10,30), seeds=(1,), entries=['TF-IDF'])
    assert curve.measure=='span F1 of a text' and len(curve.table)==2

def test_candidates_are_compared(tiny):
    rows = pd.DataFrame(dict(question=df.text[:40], a=df.label[:40], b='another one', label=[i%2 for i in range(40)]))
    board = leaderboard(rows, entries=quick('TF-IDF', 'frozen probe', 'all layers', 'contrastive'), archs=tiny, minutes=2, seeds=(1,2),
                        text_col=['question','a','b'], task='choice')
    assert board.winner=='all layers' and {*board.notes}=={'TF-IDF','frozen probe','contrastive'}
    assert 0<=board.score('all layers')<=1 and len(board.y)==40
    with pytest.raises(ValueError, match='texts, words and candidates'):
        leaderboard(rows.assign(answer='', start=0), text_col=['question','a'], label_col=['answer','start'], task='spans', minutes=1)

def test_the_command(tiny, tmp_path, capsys):
    df.to_csv(tmp_path/'rows.csv', index=False)
    said = ['compare', str(tmp_path/'rows.csv'), '--minutes', '1', '--seeds', '1,2', '--archs', str(tiny), '--entries', 'TF-IDF,frozen probe', '--output', str(tmp_path/'out')]
    assert main(said)==0 and 'The report is' in capsys.readouterr().out
    assert main(said)==2 and 'resume' in capsys.readouterr().err and main([*said,'--resume'])==0

def test_the_command_compares_numbers_that_look_like_classes(tmp_path, capsys):
    rows = df.assign(label=df.text.str.len())
    rows.to_csv(tmp_path/'rows.csv', index=False)
    said = ['compare', str(tmp_path/'rows.csv'), '--entries', 'largest class,TF-IDF', '--seeds', '1,2', '--minutes', '1', '--output', str(tmp_path/'out')]
    assert main([*said, '--task', 'regression'])==0 and 'squared error' in capsys.readouterr().out

def test_a_curve_is_made_of_nested_samples_on_the_same_held_out_rows():
    seen = []
    curve = label_curve(df, sizes=(20,40), seeds=(1,2), entries=(spy(seen),'TF-IDF'))
    assert len(curve.rows)==2*2*2 and len({len(o) for o in curve.rows.hits})==1
    for seed in (1,2):
        small,large = ({*o.texts} for o in seen if o.plan['seed']==seed)
        assert len(small)==20 and small<large
    assert np.allclose(curve.gains().gain, 0)

def test_a_curve_says_what_it_cannot_compare():
    for change,words in ((dict(label_col='lable'),'did you mean'), (dict(entries=['mean']),'for `leaderboard`'), (dict(text_col='txt'),'not a column')):
        with pytest.raises(ValueError, match=words): label_curve(df, sizes=[40], **change)
    with pytest.raises(ValueError, match="no fit of 'TF-IDF'"): label_curve(df, sizes=[40], seeds=[1], entries=['largest class']).gains()

def test_fewer_labels_are_read_from_the_means():
    rows = [dict(entry=e, labels=n, seed=s, hits=np.array(h), seconds=1.) for e,n,h in (('TF-IDF',10,[0,0,1,0]),('TF-IDF',40,[1,0,1,0]),('net',10,[1,1,1,0]),('net',40,[1,1,1,1])) for s in (1,2)]
    saved = LabelCurve(rows).fewer()
    assert saved.times['net']==4 and saved.gain['net']==.25

def test_an_order_holds_each_class_first():
    labels = np.repeat(list('aab'), 7)
    assert sorted(nested_order(labels, 3))==list(range(21)) and set(labels[nested_order(labels, 3)[:2]])=={'a','b'}

def test_the_table_of_entries():
    assert [*entries][:5]==['largest class','TF-IDF','characters','word vectors','frozen probe']
    assert all(o.fit is None or o.fit.__doc__ for o in entries.values())

def test_mistakes_in_tags_are_named(caplog):
    rows = pd.DataFrame({'text':[o.split() for o in df.text[:40]]})
    rows['label'] = [['B-WH' if w in ('what','how') else 'O' for w in o] for o in rows.text]
    quick = dict(entries=['TF-IDF'], minutes=1, seeds=(1,2))
    short = rows.assign(label=[o[:-1] if i==3 else o for i,o in rows.label.items()])
    with pytest.raises(TypeError, match="pass task='tags'"): leaderboard(short, **quick)
    with pytest.raises(ValueError, match=f'row 3 has {len(rows.text[3])} words'): leaderboard(short, task='tags', **quick)
    with pytest.raises(ValueError, match="only the class"):
        leaderboard(rows.assign(label=[['O']*len(o) for o in rows.text]), **quick)
    odd = rows[:10].assign(label=[['B-XX', *o[1:]] for o in rows.label[:10]])
    board = leaderboard(rows, test=odd, **quick)
    assert 'training has no row of B-XX: 10 of 10 test rows have it' in caplog.text and board.score('TF-IDF')<1

# ---- encoders by a linear model on their vectors

def test_encoders_are_compared_on_the_same_rows_in_seconds():
    df = intents(120)
    table = compare_encoders(df, ['wiki-mini','minilm'])
    assert [*table.index]==['minilm','wiki-mini'] and table.against_best['minilm']=='' and table.against_best['wiki-mini'].startswith('worse by')
    assert table.accuracy.between(table.low, table.high).all() and (table.core_seconds>0).all()
    few = pd.DataFrame({'text':['a','b','c','','e'], 'label':list('xxxyy')}) # two folds, a blank text
    assert len(compare_encoders(few, 'minilm'))==1
    for bad,says in ((df.assign(label=df.index/7), 'with one class each'), (df[:1], 'two classes'), (df.assign(label=[['a','b']]*len(df)), 'with one class each')):
        with pytest.raises(ValueError, match=says): compare_encoders(bad, 'minilm')
