"Labels are what the file says, whichever door and file format they come through, and splits that cannot be made say why"
import enum, logging, re
from decimal import Decimal
import numpy as np, pandas as pd, pytest, torch
from fastformers import cli
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.data.labels import as_frame, find_task, read_labels, warn_typos
from fastformers.data.rows import Rows
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
from fastformers.learner.evaluate import score_rows
from fastformers.tasks.core import MultiLabel, task_of
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.readers import read_texts
from fastformers.text.store import TokenStore
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm
from transformers import AutoModelForMaskedLM

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    "A directory of a tiny BERT"
    at = tmp_path_factory.mktemp('bert')
    AutoModelForMaskedLM.from_config(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(at)
    tiny_tok().save_pretrained(at)
    return str(at)

@pytest.fixture
def log(caplog): caplog.set_level(logging.INFO, 'fastformers'); return caplog

def said(log, level=logging.WARNING): return [r.getMessage() for r in log.records if r.levelno>=level]
def rows(labels, start=0):
    "Sixty tiny reviews with `labels` in turn"
    texts = [f'{o} {start+i}' for i,o in enumerate(tiny_df().text)]
    return pd.DataFrame({'text':texts, 'label':pd.Series([labels[i%len(labels)] for i in range(60)], dtype=object)})

class Dataset:
    "The part of a `datasets.Dataset` that is used"
    features = {}
    def __init__(self, df): self.df = df
    def to_pandas(self): return self.df.copy()

def through(kind, df, path):
    "`df` as it comes back from a file or an object of a `kind`"
    if kind=='frame': return df
    if kind=='dataset': return as_frame(Dataset(df))
    at = path/f'{len([*path.iterdir()])}.{kind}'
    df.to_csv(at, index=False) if kind=='csv' else df.to_json(at, orient='records', lines=True)
    return read_texts(at)

kinds = pytest.mark.parametrize('kind', ['csv','jsonl','frame','dataset'])

# ---- doors: each returns the task of a classifier that was trained on `df`

def by_dls(df, test, arch, path, task=None):
    dls = classifier_dls(df, arch, bs=8, device='cpu', task=task)
    if test is not None: [*dls.test_dl(test, with_labels=True).dataset]
    return task_of(dls)
def by_stage(df, test, arch, path, task=None):
    return task_of(fine_tune_classifier(df, arch, test=test, epochs=0, task=task).learner.dls)
def by_recipe(df, test, arch, path, task=None):
    recipe = dict(lm=dict(objective='none'), classifier=dict(epochs=0, task=task), run=dict(compare=()))
    return task_of(ulmfit(df, test=test, arch=arch, recipe=recipe).final[0].learner.dls)
def by_board(df, test, arch, path, task=None):
    return leaderboard(df, test=test, archs=[arch], entries=['TF-IDF'], seeds=[1], log=lambda o: None, task=task).task
def by_command(df, test, arch, path, task=None):
    for name,o in (('df',df), ('test',test)):
        if o is not None: o.to_json(path/f'{name}.jsonl', orient='records', lines=True)
    more = (['--test', str(path/'test.jsonl')] if test is not None else [])+(['--task', task] if task else [])
    assert cli.main(['classify', str(path/'df.jsonl'), '--arch', arch, '--output', str(path/'model'), '--epochs', '0', *more])==0
    return from_hf(path/'model').task

doors = pytest.mark.parametrize('door', [by_dls, by_stage, by_recipe, by_board, by_command], ids=lambda o: o.__name__[3:])
tested = pytest.mark.parametrize('door', [by_stage, by_recipe, by_board, by_command], ids=lambda o: o.__name__[3:])

# ---- one reading of labels

@kinds
@pytest.mark.parametrize('labels,want', [
    (['007','07','0010'], ['0010','007','07']), (['+1','0','-1'], ['+1','-1','0']), ([1,2,'3a'], ['1','2','3a']), (['1','x',2.], ['1','2','x']),
    (['12345678901234567','1'], ['1','12345678901234567']), ([3,5], [3,5]), ([True,False], [False,True]), (['yes','no'], ['no','yes'])], ids=str)
def test_every_format_is_read_alike(kind, labels, want, arch, tmp_path):
    df = through(kind, rows(labels), tmp_path)
    if kind=='csv' and labels==['1','x',2.]: want = ['1','2.0','x'] # as the file says
    assert by_dls(df, None, arch, tmp_path).labels==want

class Kind(enum.Enum): good,bad = 1,2

@doors
@pytest.mark.parametrize('labels,want', [([pd.Timestamp('2026-01-01'),pd.Timestamp('2026-02-01')], ['2026-01-01 00:00:00','2026-02-01 00:00:00']),
    ([Decimal('1.5'),Decimal('2')], ['1.5','2']), ([Kind.good,Kind.bad], ['Kind.bad','Kind.good'])], ids=['dates','decimals','enum'])
def test_labels_that_json_has_no_word_for_are_text(door, labels, want, arch, tmp_path, log):
    if door is by_command: pytest.skip('its files hold text')
    assert door(rows(labels), rows(labels, 100), arch, tmp_path).labels==want
    assert not any('failed' in o or 'training has' in o for o in said(log))
    df = rows(labels)
    assert [*from_hf(TextBaseline.fit(df.text, df.label).save(tmp_path/'base')).labels]==want

def test_numbers_of_a_table_stay_numbers(tmp_path):
    (tmp_path/'a.csv').write_text('text,n,x,flag,code,cell\na,1,1.50,True,007,\nb,2,-0.5,False,10,3\nc,0,1e3,TRUE,0,5\n')
    df = read_texts(tmp_path/'a.csv')
    assert [o.dtype.kind for _,o in df.items()][1:4]==['i','f','b'] and df.code.tolist()==['007','10','0']
    assert df.cell.isna().tolist()==[True,False,False] and df.cell[1:].tolist()==[3,5] and df.x.tolist()==[1.5,-.5,1000]

@doors
@pytest.mark.parametrize('labels,others,want', [([0,1],['0','1'],[0,1]), (['0','1'],[0,1],['0','1']), ([1,2,'3a'],[2,'3a'],['1','2','3a']),
    (['0','1'],[0.,1.],['0','1'])], ids=str)
def test_test_rows_are_read_like_training_rows(door, labels, others, want, arch, tmp_path, log):
    assert door(rows(labels), rows(others, 100), arch, tmp_path).labels==want
    assert not said(log) or not any('training has' in o for o in said(log))

def test_saved_classifiers_read_labels_of_another_type(tmp_path):
    df = rows([0,1])
    base = from_hf(TextBaseline.fit(df.text, df.label).save(tmp_path/'base'))
    assert score_rows(base, df.assign(label=df.label.astype(str)))[1]==df.label.tolist()
    with pytest.raises(ValueError, match="has no label '2'"): score_rows(base, df.assign(label='2'))
    assert TextBaseline.fit(df.text, rows([1,'a']).label).labels==['1','a']

@doors
@pytest.mark.parametrize('form', [list, np.array, lambda o: np.array(o, 'float32'), tuple, lambda o: [bool(i) for i in o]], ids=['list','array','float','tuple','bool'])
def test_lists_of_zeros_and_ones_are_several_labels(door, form, arch, tmp_path, log):
    if form is not list and door is not by_dls: pytest.skip('as lists')
    hot = [[1,0,0],[0,1,1],[0,0,0],[1,1,0]]
    task = door(rows([*map(form, hot)]), rows([*map(form, hot)], 100) if door is not by_dls else None, arch, tmp_path)
    assert (task.name, task.labels)==('multi', ['0','1','2']) and not task.at_least_one
    assert any("'label' holds lists of 0 and 1, read as 3 labels whose names are their places" in o for o in said(log))

@doors
def test_lists_beside_other_lists_are_several_labels(door, arch, tmp_path):
    def both(df): return df.assign(ids=df.label.map(lambda o: [*map(ord, o)]))      # as many, but no words
    task = door(both(rows([['a','b'],['c']])), both(rows([['a'],['c']], 100)), arch, tmp_path)
    assert (task.name, task.labels)==('multi', ['a','b','c'])

def test_as_many_labels_as_words_are_tags():
    df = pd.DataFrame(dict(text=['Ann sings','Bo'], words=[['Ann','sings'],['Bo']], label=[['B-PER','O'],['B-PER']]))
    for cols in (['text','words','label'], ['text','label']): assert Rows(df[cols]).task.name=='tags'
    assert Rows(df, 'words').task.name==Rows(df[1:], 'words').task.name=='tags' and Rows(df[1:]).task.name=='multi'

def test_lists_of_zeros_and_ones_have_the_names_that_are_given(arch, tmp_path):
    hot = rows([[1,0,0],[0,1,1]])
    dls = classifier_dls(hot, arch, bs=8, device='cpu', task=MultiLabel(['joy','fear','awe']))
    assert list(dls.vocab)==['joy','fear','awe'] and {tuple(y.int().tolist()) for _,y in dls.train_ds}=={(1,0,0),(0,1,1)}
    assert TextBaseline.fit(hot.text, hot.label, 'multi').labels==['0','1','2']
    ids = classifier_dls(rows([[0],[0,1],[1,2]]), arch, bs=8, device='cpu')            # numbers of classes
    assert task_of(ids).labels==[0,1,2]
    with pytest.raises(ValueError, match="lists of numbers such as 0.2; write each number .*task='regression'"): by_dls(rows([[.2,.8],[.5,.5]]), None, arch, tmp_path)
    flags = rows(['x','y']).assign(a=['0','1']*30, b=['1','1','0']*20)
    assert [r for r in MultiLabel().read(flags, ['a','b'])][:3]==[['b'],['a','b'],[]]

@doors
@pytest.mark.parametrize('labels,why', [
    ([f'{i}%' for i in range(12)], "numbers as text.*12.5, not '0%', and pass task='regression'"), ([f'{i},5' for i in range(12)], "numbers as text.*not '0,5'"),
    ([f'{i}.0 kg' for i in range(12)], "not '0.0 kg'"), ([f'€ {i}.99' for i in range(12)], "not '€ 0.99'"), ([f'{i}.5' for i in range(11)]+['n/a'], "not 'n/a'"),
    (['comedy|drama','drama','comedy|action','action'], r"joined by '\|', 'comedy\|action', each combination.*write ';'"), (['a, b','b','a','c, a'], "joined by ','"),
    (['a/b','b','a','c/a'], "joined by '/'"), (['a\tb','b','a','c\ta'], r"joined by '\\t'"), (['a b & c d','c d','a b','e & a b'], "joined by '&'"),
    (['Food; drink','Travel'], "read as task='multi', but 'Food; drink' may be one class; to keep it one pass task='single'")], ids=lambda o: o[0] if isinstance(o, list) else '')
def test_a_doubtful_column_is_said(door, labels, why, arch, tmp_path, log):
    if door in (by_recipe, by_command, by_stage) and not ('%' in labels[0] or 'Food' in labels[0] or '|' in labels[0]): pytest.skip('as the other doors')
    door(rows(labels), None, arch, tmp_path)
    assert any(re.search(why, o) for o in said(log))

def test_a_task_that_is_given_is_not_doubted(arch, tmp_path, log):
    for labels in (['Food; drink','Travel'], ['comedy|drama','drama','comedy']):
        assert by_dls(rows(labels), None, arch, tmp_path, 'single').labels==sorted(labels)
    assert not said(log)

@pytest.mark.parametrize('labels', [['Sci/Tech','World','Sports'], ['sport/other','politics/other','sport/news','politics/news'], ['yes, please','yes','no'], ['A01','B20','C33','D11','E02','F09','G44'],
    ['positive; x','negative; x','neutral; x'], ['late;bill','bill','late'], ['1 star','2 stars','3 stars','4 stars','5 stars'], ['R&D','Sales','Support']], ids=lambda o: o[0])
def test_names_that_are_names_are_not_doubted(labels, arch, tmp_path, log):
    by_dls(rows(labels), None, arch, tmp_path)
    assert not [o for o in said(log) if 'read as' in o]

# ---- names that look alike

alike = pytest.mark.parametrize('a,b', [('café','cafe\u0301'), ("don't",'don’t'), ('so so','so\xa0so'), ('good','go\u200bod'), ('re-do','re‑do'), ('ﬁne','fine'), ('❤️','❤'), ('Good','good ')],
                                ids=lambda o: o.encode('unicode_escape').decode())

@alike
def test_names_that_look_alike_are_said(a, b, log):
    warn_typos([a]*5+[b]*4+['other']*9)
    assert len(said(log))==1 and re.fullmatch(r'label (.+) has 4 of 18 rows, (.+) 5; is it a typo\?', said(log)[0])
    x,y = re.fullmatch('label (.+) has 4 of 18 rows, (.+) 5; is it a typo.', said(log)[0]).groups()
    assert x!=y and (x.isascii() or y.isascii() or a.isascii())

@pytest.mark.parametrize('name', ['nan','NaN','NA','n/a','NULL','<NA>'])
def test_a_label_that_says_there_is_none_is_said(name, log):
    warn_typos([name]*4+['other']*9)
    assert said(log)==[f'label {name!r} has 4 of 13 rows; do they lack a label? Leave them out']
    log.clear(); warn_typos(['none']*4+['nanny']*9+['none of these']); assert not [o for o in said(log) if 'lack' in o]

def test_of_very_many_names_only_those_that_look_alike_are_said(log, monkeypatch):
    monkeypatch.setattr('fastformers.data.labels.get_close_matches', lambda *_, **__: pytest.fail('takes minutes'))
    letters = 'abcdefghijk'
    warn_typos([a+b+c for a in letters for b in letters for c in letters]+['ABC'])
    assert said(log)==["label 'ABC' has 1 of 1332 rows, 'abc' 1; is it a typo?"]

@doors
def test_names_that_look_alike_in_training_are_said_at_every_door(door, arch, tmp_path, log):
    if door is by_board: pytest.skip('its entries are silent')
    door(rows(['café','cafe\u0301','dull']), None, arch, tmp_path)
    assert any('is it a typo?' in o and 'e\\u0301' in o for o in said(log))

def test_several_labels_that_look_alike_are_said(arch, tmp_path, log):
    by_dls(rows([['café'],['cafe\u0301','dull']]), None, arch, tmp_path)
    assert any('is it a typo?' in o and 'of 60 rows' in o for o in said(log))

@tested
def test_names_that_look_alike_in_test_are_said(door, arch, tmp_path, log):
    door(rows(['café','dull']), rows(['cafe\u0301','dull','café'], 100), arch, tmp_path)
    assert any("label 'cafe\\u0301' has 20 of 120 rows, 'caf\\xe9' 50; is it a typo?" in o for o in said(log))
    assert any(': 20 of 60 test rows count as errors' in o for o in said(log))

def test_labels_of_test_that_only_look_alike_are_refused_and_said(arch, tmp_path, log):
    with pytest.raises(ValueError, match="none of the labels of the test rows: Dull; write them alike"):
        by_stage(rows(['good','dull']), rows(['Dull'], 100), arch, tmp_path)
    assert any(o.startswith("label 'dull' has 30 of 120 rows, 'Dull' 60") for o in said(log))

# ---- rows of test and of training

@tested
def test_test_rows_that_are_in_training_are_counted(door, arch, tmp_path, log):
    df,test = rows(['good','dull']),rows(['good','dull'], 100)
    test.loc[:6,'text'] = df.text[:7].str.upper()
    door(df, test, arch, tmp_path)
    assert any(o=='7 of 60 test texts are also in training; drop duplicates' for o in said(log))

# ---- one long text

book = ' '.join(f'{o} In chapter {i} nothing else happened.' for i in range(30) for o in tiny_df().text)

def one(kind, tmp_path):
    if kind=='store': return TokenStore.build([book], tiny_tok(), tmp_path/'store')
    return {'list':[book], 'frame':pd.DataFrame({'text':[book]}), 'dataset':Dataset(pd.DataFrame({'text':[book]})), 'with a title':['The book', book, ''], 'array':np.array([book], object)}[kind]

@pytest.mark.parametrize('kind', ['list','frame','dataset','with a title','array','store'])
@pytest.mark.parametrize('style', ['bert','gpt2'])
def test_a_book_is_cut_for_training_and_validation(kind, style, tmp_path):
    data = one(kind, tmp_path) if kind!='store' else TokenStore.build([book], tiny_tok(style), tmp_path/'store')
    dls = lm_dls(data, tiny_tok(style), bs=8, seq_len=64, device='cpu')
    n,held = (int(o.lengths.sum()) for o in (dls.train,dls.valid))
    assert .08<held/(n+held)<.13
    seen = [tuple(x.ids.tolist()) for x,*_ in dls.train_ds]
    assert len({*seen} & {tuple(x.ids.tolist()) for x,*_ in dls.valid_ds})<len(seen)/50

def test_every_token_of_a_book_is_read_once(tmp_path):
    t = tiny_tok()
    want = t(book, add_special_tokens=False, verbose=False).input_ids
    dls = lm_dls(TokenStore.build(['The book', book, ''], t, tmp_path/'store'), t, bs=8, device='cpu')
    got = [x.ids[1:-1].tolist() for ds in (dls.train_ds,dls.valid_ds) for x,*_ in ds]
    assert sorted(i for o in got for i in o)==sorted(want+t('The book', add_special_tokens=False).input_ids)

@pytest.mark.parametrize('kind', ['list','store'])
def test_a_book_is_trained_on_at_every_door(kind, arch, tmp_path):
    how = dict(epochs=.02, bs=8, seq_len=32)
    data = one(kind, tmp_path)
    assert fine_tune_lm(data, arch, **how).metrics['loss']>0
    assert pretrain_lm(data, tok=tiny_tok() if kind=='store' else None, size=1, width=64, vocab_sz=500, **how).metrics['loss']>0

@pytest.mark.parametrize('command', ['adapt','pretrain'])
def test_a_folder_with_a_book_is_trained_on(command, arch, tmp_path):
    (tmp_path/'books').mkdir()
    (tmp_path/'books'/'one.txt').write_text(book.replace('. ', '.\n'))
    more = ['--arch', arch] if command=='adapt' else ['--size', '1', '--width', '64', '--vocab-sz', '500']
    assert cli.main([command, str(tmp_path/'books'), '--output', str(tmp_path/'lm'), '--epochs', '.02', '--bs', '8', '--seq-len', '32', *more])==0

def test_a_recipe_reads_a_book(arch):
    recipe = dict(lm=dict(epochs=.02, bs=8, seq_len=32), classifier=dict(epochs=0), run=dict(compare=()))
    assert ulmfit(rows(['good','dull'])[:20], unlabelled=[book], arch=arch, recipe=recipe).stages[0].metrics['loss']>0

def test_blank_texts_hold_no_part_of_a_language_model():
    dls = lm_dls(['',' \n']*20+['a good film about the sea', 'a dull film about the sea'], tiny_tok(), bs=8, device='cpu')
    assert (dls.train.n, dls.valid.n)==(1,1)
    with pytest.raises(ValueError, match='all 3 texts are blank; is this the column'): lm_dls(['','  ','\n'], tiny_tok())

@pytest.mark.exact
def test_names_of_two_levels_give_answers_at_both(tmp_path):
    df = tiny_df()
    df['label'] = [f"{l[:3]} > {'long' if len(t)>50 else 'short'}" for l,t in zip(df.label, df.text)]
    stage = fine_tune_classifier(df, tiny_arch('bert'), tmp_path/'c', tok=tiny_tok('bert'), sep_level='>', epochs=1, bs=16, head_init='random')
    assert stage.metrics['upper_level_accuracy']>=stage.metrics['accuracy']==pytest.approx(stage.score.mean())
    p = from_hf(tmp_path/'c', device='cpu')
    scores = p.scores(df.text.tolist())
    for o,r in zip(p(df.text), scores):
        sums = {u:sum(s for l,s in zip(p.labels, r.tolist()) if l.startswith(u)) for u in ('neg','neu','pos')}
        assert o['upper']==max(sums, key=sums.get) and abs(o['upper_score']-sums[o['upper']])<1e-5 and abs(o['score']-float(r.max()))<1e-6
    assert [*p.predict_frame(df[['text']])]==['text','label','score','upper','upper_score']
    assert all(a['label'].startswith(a['upper']) for o in p(df.text[:5], top_k=3) for a in o)
    for how,words in ((dict(sep_level='/'), "'/' is in no name of a class, such as 'neg > long'"), (dict(sep_level='>', task='multi'), 'one class a text')):
        with pytest.raises(ValueError, match=words): fine_tune_classifier(df.assign(label=df.label.map(lambda o: [o])) if 'task' in how else df, tiny_arch('bert'), tok=tiny_tok('bert'), epochs=1, **how)

def test_the_best_of_a_comparison_answers_at_two_levels(tmp_path):
    df = tiny_df()
    df['label'] = [f"{l[:3]} > {'long' if len(t)>50 else 'short'}" for l,t in zip(df.label, df.text)]
    how = dict(entries=['TF-IDF'], seeds=[1], log=lambda o: None)
    board = leaderboard(df, path=tmp_path/'b', sep_level='>', **how)
    assert all(o['label'].startswith(o['upper']) for o in from_hf(tmp_path/'b/best')(df.text[:5]))
    with pytest.raises(ValueError, match="'/' is in no name of a class"): leaderboard(df, sep_level='/', **how)

def test_blanks_around_a_label_are_no_part_of_it():
    df = pd.DataFrame({'text':[f'text {i}' for i in range(40)], 'label':['warm ','warm','cold','\u00a0cold']*10})
    task = find_task(df)
    assert task.labels==['cold','warm'] and read_labels(df, 'label', task)[:4]==['warm','warm','cold','cold']
    several = find_task(df.assign(label=df.label+';x'))
    assert several.name=='multi' and sorted({n for o in read_labels(df.assign(label=df.label+';x'), 'label', several) for n in o})==['cold','warm','x']
