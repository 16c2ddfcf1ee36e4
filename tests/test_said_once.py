"What the held-out rows chose stands under the table, a fact is logged once, and settings are chosen by training rows"
import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Learner
from fastformers.cli import main
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.data.block import item_labels
from fastformers.inference.predictor import from_hf
from fastformers.interpret.slices import label_issues
from fastformers.learner.core import classifier_learner
from fastformers.learner.evaluate import class_scores
from fastformers.text.corpora import intents
from fastformers.data.rows import Rows
from fastformers.learner.train import unlikely
from fastformers.ulmfit import unlabelled
from fastformers.ulmfit.read import task_dls, task_learner
from fastformers.ulmfit.recipe import Recipe, TaskConfig, read_data, without_blanks
from fastformers.ulmfit.record import Stage
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

df = intents(100)
quick = dict(epochs=1, max_len=16, precision='fp32')

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp('body')/'tiny'
    fine_tune_lm(df, tiny_arch('bert', num_hidden_layers=1), path, tok=tiny_tok('bert'), epochs=.1, seq_len=32)
    return path

def few(n, kind):
    rows = intents(800)
    if kind=='numbers': return rows[:n].assign(label=rows.text.str.len()[:n].astype(float))
    if kind=='several': return rows[:n].assign(label=rows.label+';'+np.where(rows.text.str.contains('my'), 'mine', 'other'))
    if kind=='two': return rows[rows.label.isin(['banking','travel'])][:n]
    return rows[:n]

@pytest.mark.parametrize('kind', ['classes','two','numbers','several'])
@pytest.mark.parametrize('n', [20,44])
def test_with_few_labels_a_training_that_fails_hands_out_the_probe(n, kind, caplog):
    rows = few(n, kind)
    if kind=='classes': rows = rows[rows.groupby('label').text.transform('size')>1]
    stage = fine_tune_classifier(rows, 'wiki-mini', lr=.1, epochs=5, bs=16, max_len=12, head_init='probe', precision='fp32')
    assert stage.probe_kept or stage.score.mean()>=stage.score_before.mean(), (stage.score_before, stage.score)
    if stage.probe_kept:
        assert stage.metrics==stage.before and sum('so the probe is kept' in o for o in caplog.messages)==1
        assert 'so the probe is kept' in repr(stage) and 'so the probe is kept' in stage._repr_markdown_()

def test_a_good_training_is_rarely_undone():
    "Of 1,000 calibrated or over-confident trainings fewer than one in a hundred, whatever the rival is"
    rng,undone = np.random.default_rng(0),[]
    from fastformers.tasks.core import SingleLabel
    for k,n in ((2,4),(2,9),(10,4),(10,9),(10,40)):
        task = SingleLabel([*map(str, range(k))])
        for _ in range(100):
            true = torch.tensor(rng.normal(0, 2, (n,k)))
            y = torch.tensor([rng.choice(k, p=o/o.sum()) for o in true.softmax(1).numpy()])
            for noise in (.1,2.):
                rival = true+noise*torch.tensor(rng.normal(0, 1, (n,k)))
                undone.append(unlikely(task, 3*true, y, float(task.loss_func()(rival, y))))
    assert len(undone)==1000 and np.mean(undone)<.01
    y = torch.arange(6)%3
    assert unlikely(SingleLabel([*'abc']), torch.zeros(6,3), y, .05) and not unlikely(SingleLabel([*'abc']), torch.zeros(6,3), y, .9)

def spread(label=None):
    "Label all texts alike, or as the rows are"
    known = {**dict(zip(intents(500, seed=1).text, intents(500, seed=1).label)), **dict(zip(df.text, df.label))}
    return lambda self, texts, scores=None: [label or known[o] for o in texts]

@pytest.mark.parametrize('label,refit', [('banking',False), (None,True), pytest.param('banking', True, marks=pytest.mark.slow), pytest.param(None, False, marks=pytest.mark.slow)])
def test_a_training_with_unlabelled_texts_is_kept_if_it_scores_higher(label, refit, tiny, tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level('INFO', 'fastformers')
    monkeypatch.setattr(Learner, 'spread_labels', spread(label))
    more = intents(500, seed=1).text.tolist()
    stage = fine_tune_classifier(df, tiny, tmp_path/'c', unlabelled=more, refit=refit, test=df[:20], **{**quick, 'epochs':3, 'lr':3e-3})
    said, = [o for o in stage.chosen if 'unlabelled texts' in o]
    with_them,without = float(said.split()[1]),float(said.split(' texts, ')[1].split()[0])
    kept = 'so the training with them is kept' in said
    few = (without-with_them)*len(stage.score)<2.5 # of 20 held-out rows
    assert kept==few and stage.score.mean()==pytest.approx(with_them if kept else without, abs=1e-3)
    assert kept or label is None or 'without them is kept' in said
    assert (stage.data['training rows']>100)==kept and stage.name=='classifier' and stage.test
    assert said in repr(stage) and said in Stage.load(tmp_path/'c/record.json').chosen
    assert sum('unlabelled texts' in o for o in caplog.messages)==1
    assert len(from_hf(tmp_path/'c').kept.distances)>=90 # a fifth of the texts is new to the network that is kept

@pytest.mark.parametrize('loss,kept', [(.3,'with'), (.5,'without'), (.7,'without')])
def test_a_tie_is_broken_by_the_loss_of_the_held_out_rows(loss, kept):
    def stage(loss): return Stage('c', 1, 'a', {}, score_name='accuracy', score=np.ones(40), metrics=dict(loss=loss))
    first,second,rows = stage(.5),stage(loss),Rows(pd.DataFrame(dict(text=[str(i) for i in range(42)], label=['x','y']*21)))
    rows.is_valid = np.arange(42)>1
    res = unlabelled._better(second, first, rows, 9)
    assert res is (second if kept=='with' else first) and f'loss {loss:.3f}, 0.500' in res.chosen[0]

@pytest.mark.parametrize('n,right,kept', [(12,8,'with'), (12,7,'without'), (40,38,'without'), (40,40,'with')])
def test_few_held_out_rows_do_not_choose(n, right, kept):
    def stage(k): return Stage('c', 1, 'a', {}, score_name='accuracy', score=(np.arange(n)<k)*1., metrics=dict(loss=1.))
    rows = Rows(pd.DataFrame(dict(text=[str(i) for i in range(n+2)], label=['x','y']*(n//2+1))))
    rows.is_valid = np.arange(n+2)>1
    first,second = stage(10 if n==12 else 39),stage(right)
    res = unlabelled._better(second, first, rows, 9)
    assert res is (second if kept=='with' else first) and ('few rows tell little' in res.chosen[0])==(n==12 and kept=='with')

def test_texts_of_classes_without_a_row_are_left_out(tiny, caplog, monkeypatch):
    monkeypatch.setattr(Learner, 'spread_labels', spread())
    rows = intents(60).assign(label=[f'{o} {i%9}' for i,o in enumerate(intents(60).label)])
    stage = fine_tune_classifier(rows, tiny, unlabelled=intents(300, seed=1).text.tolist(), **quick)
    assert 'have a class without a row' in caplog.text and '`unlabelled` is left out' in caplog.text and stage.data['training rows']<60

@pytest.mark.exact
def test_names_of_all_classes_keep_the_texts_of_those_without_a_row(tiny, caplog, monkeypatch):
    monkeypatch.setattr(Learner, 'spread_labels', lambda self, texts, scores=(): seen.update(item_labels(self.dls.train_ds)) or spread('9')(self, texts))
    seen,rows = set(),intents(60).assign(label=[str(i%9) if i<56 else str(i) for i in range(60)])
    names = {o:f'class {o}' for o in sorted({*rows.label, '9'})}
    stage = fine_tune_classifier(rows, tiny, unlabelled=intents(300, seed=1).text.tolist(), names=names, **quick)
    assert 'is left out' not in caplog.text and '9' in seen and '9' in stage.learner.model.task.labels

def blanks():
    rows = df.copy()
    rows.loc[[3,30],'text'] = '  '
    return rows

@pytest.mark.parametrize('how', [{}, dict(refit=True), dict(unlabelled=True), dict(unlabelled=True, refit=True)])
def test_a_fact_about_the_rows_is_logged_once(how, tiny, caplog, monkeypatch):
    monkeypatch.setattr(Learner, 'spread_labels', spread('banking'))
    if 'unlabelled' in how: how = how | dict(unlabelled=intents(300, seed=1).text.tolist())
    fine_tune_classifier(blanks(), tiny, **quick, **how)
    assert sum('texts are blank' in o for o in caplog.messages)==1 and '1 of 1' not in caplog.text
    assert ('which is missing; `stage.learner` has the training rows alone' in caplog.text)==('refit' in how)

def test_a_run_logs_a_fact_about_the_rows_once(tiny, tmp_path, caplog):
    recipe = Recipe().replace(run=dict(seeds=(1,2)), model=dict(arch=str(tiny), precision='fp32'), lm=dict(objective='none'), classifier=dict(epochs=.5, max_len=16))
    ulmfit(blanks(), recipe=recipe)
    assert sum('texts are blank' in o for o in caplog.messages)==1

@pytest.mark.parametrize('door', ['classify','compare','recipe'])
def test_blank_rows_can_be_dropped(door, tiny, tmp_path, caplog, capsys):
    blanks().to_csv(tmp_path/'rows.csv', index=False)
    if door=='recipe':
        read = read_data(Recipe().replace(data=dict(source=str(tmp_path/'rows.csv'), drop_blank=True)))[0]
        assert len(read)==98 and len(read_data(Recipe().replace(data=dict(source=str(tmp_path/'rows.csv'))))[0])==100
        return
    more = ['--arch', str(tiny), '--epochs', '.2', '--max-len', '16', '--refit', 'no'] if door=='classify' else ['--entries', 'TF-IDF', '--seeds', '1,2', '--minutes', '1']
    for i,flag in enumerate([[], ['--drop-blank']]):
        caplog.clear()
        assert main([door, str(tmp_path/'rows.csv'), '--output', str(tmp_path/f'out{i}'), *more, *flag])==0
        assert sum('texts are blank' in o for o in caplog.messages)==(not flag)
    rows = blanks()
    rows.loc[[5,40],'label'] = ' '
    rows.to_csv(tmp_path/'rows.csv', index=False)
    again = [door, str(tmp_path/'rows.csv'), '--output', str(tmp_path/'out'), *more]
    assert main(again)==2 and '2 of 100 rows have no label' in (err := capsys.readouterr().err) and '(--drop-blank, in Python df[' in err.replace('`','')
    assert main([*again, '--drop-blank'])==0

def test_blank_labels_are_dropped_where_each_text_has_one():
    rows = blanks()[:6].assign(label=['a','b','','a',None,' '])
    assert without_blanks(rows, 'text').index.tolist()==[0,1,2,4,5] and without_blanks(rows, 'text', 'label').index.tolist()==[0,1]
    assert len(without_blanks(rows.assign(label=['a;b','b','','a','','']), 'text', 'label'))==5, 'none of several labels'

@pytest.mark.parametrize('what', ['labels','texts'])
def test_settings_are_chosen_by_training_rows(what, tiny, monkeypatch):
    "Held-out rows with labels by chance, or with long texts, change no setting"
    rows = df.assign(is_valid=np.arange(100)%5==0)
    changed = rows.copy()
    if what=='labels': changed.loc[rows.is_valid,'label'] = np.random.default_rng(0).permutation(rows.label[rows.is_valid])
    else: changed.loc[rows.is_valid,'text'] = [f'{o} '*60 for o in rows.text[rows.is_valid]]
    seen = []
    for data in (rows,changed):
        c = TaskConfig(epochs=.5)
        dls = task_dls(Rows(data).hold_out(), tiny, c)
        learn = task_learner(dls, tiny, c)
        plan = learn.plan()
        seen.append((plan['windows'], learn.cross_validate_probe(valid=False).tolist(), plan.settings['contrastive']))
    assert seen[0]==seen[1]

# What a reader of figures would not see

@pytest.fixture(scope='module')
def tickets(tmp_path_factory):
    "60 rows of two classes, of which one has five, a classifier of them, and its directory"
    d = tmp_path_factory.mktemp('tickets')
    df = pd.DataFrame({'text':[f'good film {i}' for i in range(55)]+[f'bad book {i}' for i in range(5)], 'label':['good']*55+['bad']*5})
    stage = fine_tune_classifier(df, tiny_arch('bert'), d/'c', tok=tiny_tok(), epochs=1, bs=8)
    return df, stage, d/'c'

def test_labels_are_not_doubted_by_a_network_that_was_trained_on_them_without_a_word(tickets, caplog):
    df,stage,path = tickets
    for o in (stage.learner, from_hf(path)): label_issues(o, df)
    assert caplog.text.count('so its vectors agree with wrong labels too')==2
    caplog.clear()
    label_issues(classifier_learner(stage.learner.dls, tiny_arch('bert')), df); label_issues(None, df)
    assert 'already trained' not in caplog.text

def test_most_rows_of_a_rare_class_are_not_called_wrong_without_a_word(caplog):
    df = pd.DataFrame({'text':[f'{o} film {i}' for o in ('good','bad') for i in range(30)]+['good film a','bad film b','good film c'], 'label':['good']*30+['bad']*30+['rare']*3})
    assert {'rare'}<={*label_issues(None, df).label} and 'most rows of rare are listed' in caplog.text

def test_a_saved_classifier_has_scores_by_class(tickets):
    df,stage,path = tickets
    by = class_scores(from_hf(path), df)
    assert by.loc['good','support']==55 and by.loc['bad','support']==5 and len(by)==3
    with pytest.raises(TypeError, match='need a predictor'): class_scores(stage.learner, df)
    with pytest.raises(ValueError, match='no label'): class_scores(from_hf(path), df.assign(label='odd'))

def test_answers_to_blank_texts_are_said_to_mean_nothing(tickets, caplog):
    p = from_hf(tickets[2])
    assert len(p(['good film', ' ', '']))==3 and '2 of 3 texts are blank, and their answers mean nothing' in caplog.text
    caplog.clear()
    for k in ({}, dict(top_k=2)):
        got = p.predict_frame(pd.DataFrame({'text':['a', ' ', 'b']}, [7,7,7]), **k).drop(columns='text')
        assert got.isna().all(axis=1).tolist()==[False,True,False] and got.iloc[0].notna().all() and got.score.dtype==float
    assert '1 of 3 texts are blank' in caplog.text
    caplog.clear()
    p('good film'); [*p(iter(['']))]; assert 'blank' not in caplog.text

def test_rows_without_a_label_are_the_texts_without_labels_of_the_same_file(tickets, tmp_path):
    df = tickets[0]
    df.assign(label=df.label.where(df.index%2==0, '')).to_csv(tmp_path/'t.csv', index=False)
    rows,more,*_ = read_data(Recipe().replace(data=dict(source=str(tmp_path/'t.csv'), unlabelled=str(tmp_path/'t.csv'))))
    assert len(rows)==30 and rows.label.ne('').all() and len(more)==60

def test_a_column_of_held_out_rows_that_marks_none_is_named(tickets):
    df = tickets[0]
    with pytest.raises(ValueError, match="the column 'audit' marks them, without it others are held out at random"):
        fine_tune_classifier(df.assign(audit=False), tiny_arch('bert'), tok=tiny_tok())

def test_few_held_out_rows_stand_beside_five_folds(tiny):
    stage = fine_tune_classifier(few(40, 'two'), tiny, **quick)
    assert len(stage.score)<20 and f'a probe of all rows has an accuracy of {stage.cross_validated:.2f} in five folds' in stage.interval()

@pytest.mark.exact
@pytest.mark.parametrize('how', ['unlabelled','names'])
def test_five_folds_hold_labelled_texts_alone(how, tiny, monkeypatch):
    "Neither labels that were spread nor names of classes count as right answers of the probe"
    monkeypatch.setattr(Learner, 'spread_labels', spread())
    alone = fine_tune_classifier(df, tiny, names=[], **quick)
    more = dict(unlabelled=intents(100, seed=1).text.tolist(), names=[]) if how=='unlabelled' else dict(names=[*alone.learner.model.task.labels])
    stage = fine_tune_classifier(df, tiny, **more, **quick)
    assert stage.data['training rows']>alone.data['training rows'] and stage.cross_validated==alone.cross_validated>0

def test_a_probe_is_not_compared_with_itself(tiny, caplog):
    stage = fine_tune_classifier(intents(80), tiny, epochs=0)
    assert 'frozen probe' not in stage.verdict.rivals and 'TF-IDF' in stage.verdict.rivals
    assert 'frozen probe' not in stage.learner.verdict().index
