"A held-out score is that of new rows: how rows are drawn, classes that luck leaves out, rows that a directory was trained on, intervals"
import numpy as np, pandas as pd, pytest
from fastai.basics import CategoryBlock, ColReader, ColSplitter, DataBlock
from fastai.interpret import ClassificationInterpretation
from fastai.learner import load_learner
from fastformers.compare.curve import label_curve
from fastformers.compare.encoders import compare_encoders
from fastformers.compare.entries import folds
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import HFTextBlock, classifier_dls, item_keys
from fastformers.data import labels
from fastformers.data.labels import deal, split_rows
from fastformers.data.rows import Rows
from fastformers.hub import resolve_arch
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.names import from_names
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.inference.stage_json import read_keys
from fastformers.interpret.probes import layer_probes
from fastformers.label.forecast import standing
from fastformers.stats import fmt_range, mean_interval, paired_bootstrap, verdict_on, wilson
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.core import in_keys, text_key
from fastformers.ulmfit.record import Stage
from fastformers.ulmfit.run import ulmfit
from fastformers.learner.evaluate import class_scores, evaluate, row_scores
from fastformers.tasks.core import SingleLabel
from fastformers.tasks.scores import set_score
from fastformers.ulmfit.stage import fine_tune_classifier

rng = np.random.default_rng(0)
centres = rng.normal(0, 1, (150,12))

def by_split(df, x, n): return [split_rows(df, names=[[o] for o in df.label])]
def by_folds(df, x, n): return folds(Rows(df), (1,2,3))[1]
def by_probe(df, x, n):
    part = deal(np.array([*map(text_key, df.text)]), [[o] for o in df.label], 5) # as `cross_validate_probe`
    return [(np.flatnonzero(part!=i), np.flatnonzero(part==i)) for i in range(5)]

def nearest(x, y, new): # the mean of a class, as a classifier
    names = np.unique(y)
    means = np.stack([x[y==n].mean(0) for n in names])
    return names[((new[:,None]-means)**2).sum(2).argmin(1)]

@pytest.mark.parametrize('door', [by_split, by_folds, by_probe])
@pytest.mark.parametrize('drawn', ['by chance','ten each'])
def test_a_held_out_score_is_that_of_new_rows(door, drawn):
    gaps,n = [],150 if drawn=='by chance' else 40
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, n, 400) if drawn=='by chance' else np.repeat(np.arange(n), 10)
        new = rng.integers(0, n, 1000)
        x,fresh = (centres[o]+rng.normal(0, .9, (len(o),12)) for o in (y,new))
        df = pd.DataFrame(dict(text=[f'{seed} text {i}' for i in range(len(y))], label=[f'class {o}' for o in y]))
        for train,held in door(df, x, n):
            train,held = np.array(train),np.array(held)
            gaps.append((nearest(x[train], y[train], x[held])==y[held]).mean()-(nearest(x[train], y[train], fresh)==new).mean())
    assert abs(np.mean(gaps))<.03, np.mean(gaps) # a standard error is .01; a fifth of each class is .1 too high by chance

def sizes(*k): return pd.DataFrame(dict(text=[f'text {i} of {c}' for c,n in enumerate(k) for i in range(n)], label=[f'c{c:03}' for c,n in enumerate(k) for _ in range(n)]))

@pytest.mark.parametrize('k,held', [((20,30,50), (4,6,10)), ((5,)*20, (1,)*20), ((100,80,12,6), (20,16,2,2)), ((5,4,6,5,5), (1,1,1,1,1))])
def test_shares_are_exact_where_they_are_honest(k, held):
    df = sizes(*k)
    at = split_rows(df, names=[[o] for o in df.label])[1]
    assert tuple(df.label.iloc[at].value_counts().reindex(df.label.unique(), fill_value=0))==held
    again = df.sample(frac=1, random_state=1).reset_index(drop=True).assign(text=lambda d: d.text.str.upper())
    assert {*again.text[split_rows(again, names=[[o] for o in again.label])[1]]}=={*df.text.str.upper().iloc[at]}

def test_a_class_of_one_row_may_be_tested():
    df = sizes(*[1]*30, *[2]*20, *[9]*10)
    held = df.iloc[split_rows(df, names=[[o] for o in df.label])[1]]
    assert len(held)==32 and held.label.isin([f'c{i:03}' for i in range(30)]).any()

def test_parts_keep_groups_and_equal_texts_and_are_never_empty():
    df = pd.concat([sizes(30,30,30)]*2, ignore_index=True)
    for who in (df.text.str[-6:], df.index//36, pd.Series(np.r_[np.zeros(176), 1, 2, 3, 4])):
        d = df.assign(who=[*map(str, who)])
        for group_col in ('who', None):
            parts = folds(Rows(d, group_col=group_col), (1,2,3))[1]
            assert sorted(np.concatenate([b for _,b in parts]))==[*range(180)] and all(len(b) for _,b in parts)
            for a,b in parts: assert not {*d[group_col or 'text'].iloc[a]} & {*d[group_col or 'text'].iloc[b]}

def test_the_probe_keeps_groups_and_equal_texts_in_one_fold():
    df = pd.concat([tiny_df()]*3, ignore_index=True)
    df = df.assign(who=df.index%60//6, label=np.tile(np.random.default_rng(0).choice(['a','b'], 60), 3)) # nothing to learn
    learn = lambda **kw: classifier_learner(classifier_dls(df, tiny_tok(), bs=8, device='cpu', **kw), tiny_arch('bert'), head='linear')
    assert .2<learn(group_col='who').cross_validate_probe().mean()<.75 and learn().cross_validate_probe().mean()<.75

rare = tiny_df().drop(columns='is_valid').assign(label=lambda d: [f'kind {i%23}' for i in d.index])
marked = tiny_df().assign(label=lambda d: np.where(d.index==d.is_valid.argmax(), 'odd', d.label))

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert', num_hidden_layers=1))
    path = learn.to_hf(tmp_path_factory.mktemp('tiny')/'tiny')
    (path/'trained_on.safetensors').unlink() # it has not trained
    return path

def test_a_class_without_a_training_row_is_an_error_and_named(tiny, caplog):
    stage = fine_tune_classifier(marked, tiny, epochs=.1, bs=8)
    assert 'training has no row of odd: 1 of 15 validation rows count as errors' in caplog.text
    assert 'odd' in stage.learner.dls.vocab and stage.score[0]==0 and len(stage.score)==15
    one = fine_tune_classifier(tiny_df().drop(columns='is_valid').assign(label=[f'row {i}' for i in range(60)]), tiny, epochs=.1, bs=8, refit=True)
    assert one.score.tolist()==[0] and one.learner.model.task.n_out==60
    board = leaderboard(rare, entries=['TF-IDF'], minutes=1, log=lambda o: None)
    assert 0<=board.score('TF-IDF')<1 and len(board.task.labels)==23
    assert len(label_curve(rare, (30,), (1,), entries=['TF-IDF']).table)==1

def test_classes_without_a_held_out_row_stay_out_of_the_average(tiny, caplog, capsys):
    df = tiny_df().assign(label=lambda d: d.label.where(d.is_valid | (d.index%4>0), 'only trained'))
    t = class_scores(learn := classifier_learner(classifier_dls(df, tiny_tok(), bs=8, device='cpu'), tiny))
    assert t.loc['only trained'].drop('support').isna().all() and t.support['macro avg']==15
    assert np.allclose(t.loc['macro avg'].iloc[:3].astype(float), t.drop(['only trained','macro avg']).iloc[:,:3].mean())
    assert 'classes that have no row to be scored, whose cells are blank: 1 of 4, only trained' in caplog.text
    with learn.no_bar(): ClassificationInterpretation.from_learner(learn).print_classification_report()
    said = capsys.readouterr().out
    assert f"{t.loc['macro avg','recall']:.2f}" in said.split('macro avg')[1].split()[1] and 'only trained' not in said
    assert 'which are left out: 1 of 4, only trained' in caplog.text

# ---- what a directory was trained on

half,more = tiny_df()[:40].drop(columns='is_valid'),tiny_df().drop(columns='is_valid')
def block(df):
    data = DataBlock((HFTextBlock(tiny_tok()), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
    return data.dataloaders(df, bs=8, device='cpu')

def written(door, arch, path):
    "Write a directory that was trained on `half`"
    dls = classifier_dls(tiny_df()[:40], tiny_tok(), bs=8, device='cpu')
    if door=='stage': fine_tune_classifier(half, arch, path, epochs=.1, bs=8, refit=True)
    if door=='leaderboard':
        leaderboard(half, archs=arch, entries=['frozen probe'], minutes=1, seeds=(1,2), path=path, log=lambda o: None)
        return path/'best', 40
    if door=='words': return from_hf(TextBaseline.fit(half.text, half.label).save(path/'a')).save(path/'b'), 40
    if door=='names': return from_names([*half.label.unique()], arch, examples=half.groupby('label').text.agg(list).to_dict()).save(path), 40
    learn = classifier_learner(block(tiny_df()[:40]) if door=='block' else dls, arch)
    if door=='ensemble': return Ensemble([learn.to_hf(path/'a'), TextBaseline.fit(half.text, half.label)]).save(path/'b'), 40
    if door=='new class': return from_hf(learn.to_hf(path/'a')).add_class('new', half.text[tiny_df()[:40].is_valid]).save(path/'b'), 40
    if door in ('pickle','other rows'):
        with learn.no_bar(), learn.no_logging(): learn.fit(1)
        if door=='pickle': learn.export(path.with_suffix('.pkl')); learn = load_learner(path.with_suffix('.pkl'))
        else: learn.dls = classifier_dls(tiny_df()[40:], tiny_tok(), bs=8, device='cpu')
        learn.to_hf(path)
    if door in ('to_hf','block'): learn.to_hf(path)
    if door=='save_encoder': learn.save_encoder(path)
    if door=='predictor': from_hf(as_predictor(learn).save(path/'one')).save(path/'two'); path = path/'two'
    if door=='parent': classifier_learner(classifier_dls(tiny_df()[40:], tiny_tok(), bs=8, device='cpu'), learn.to_hf(path/'a')).to_hf(path/'b'); path = path/'b'
    return path, 39 if door=='stage' else (~tiny_df()[:40].is_valid).sum()

@pytest.mark.parametrize('door', ['stage','leaderboard','to_hf','block','save_encoder','predictor','parent','words','names','ensemble','new class','pickle','other rows'])
def test_a_directory_knows_what_it_was_trained_on(door, tiny, tmp_path):
    path,n = written(door, tiny, tmp_path/'out')
    keys = {*read_keys(path).tolist()}
    assert len(keys&{*map(text_key, half.text)})==n and (len(keys)==n or door in ('parent','other rows'))

@pytest.fixture(scope='module')
def trained(tiny, tmp_path_factory): return written('stage', tiny, tmp_path_factory.mktemp('trained')/'all')[0]

def held(df): return {*Rows(df).hold_out().frame.query('is_valid').text}

def test_rows_that_a_directory_was_trained_on_are_not_scored(trained, caplog):
    keys = {*read_keys(trained).tolist()}
    df = more.assign(label=lambda d: d.label.where(d.index<50, 'a new kind'))
    every = held(df)
    fresh = [o for o in every if text_key(o) not in keys]
    says = f"already trained on {len(every)-len(fresh)} of the {len(every)} held-out rows, so the others alone are scored"
    stage = fine_tune_classifier(df, trained, epochs=.1, bs=8, test=df)
    assert says in caplog.text and len(stage.score)==len(fresh)<len(every) and f'already trained on {len(keys)} of the 60 test rows' in caplog.text
    assert len(stage.test_score)==60-len(keys) and len(stage.learner.dls.valid_ds)==len(fresh)
    caplog.clear()
    learn = classifier_learner(classifier_dls(df, trained, bs=8, device='cpu'), trained)
    assert says in caplog.text and len(learn.dls.valid_ds)==len(fresh)
    with learn.no_bar(), learn.no_logging(): learn.fit(1); preds,y = learn.get_preds()
    assert len(preds)==len(fresh)
    caplog.clear()
    later = classifier_learner(classifier_dls(df, trained, bs=8, device='cpu'), trained, pretrained=False).load_encoder(trained)
    assert says in caplog.text and len(later.dls.valid_ds)==len(fresh)
    assert 'kept' not in later.plan().settings['head_init'][1] # its head is new
    with later.no_bar(), later.no_logging(): later.fit(1) # where nothing was trained, rows may have the scores of the probe
    assert 'frozen probe' in later.verdict().index
    caplog.clear()
    board = leaderboard(df, archs=trained, entries=['TF-IDF','frozen probe'], minutes=1, log=lambda o: None)
    assert (~np.isnan(board.rows('TF-IDF'))).sum()==60-len(keys) and f'already trained on {len(keys)} of the 60 held-out rows' in caplog.text
    report = ulmfit(df, arch=trained, recipe=dict(lm=dict(objective='none'), classifier=dict(epochs=.1, bs=8), run=dict(compare=('tfidf',))))
    assert all(len(o.score)==len(fresh) for o in report.stages)
    assert len(label_curve(df, (30,), (1,), arch=trained, entries=['TF-IDF']).rows.hits[0])==len(fresh)

@pytest.mark.parametrize('door', ['load_encoder','a new head','pickle','other rows'])
def test_rows_of_an_earlier_training_are_not_held_out(door, tiny, trained, tmp_path, caplog):
    "`load_encoder`, a pickle and other data for the same learner had no look at the rows"
    every = classifier_dls(more, trained, bs=8, device='cpu')
    if door in ('load_encoder','a new head'):
        learn = classifier_learner(every, tiny if door=='load_encoder' else trained, pretrained=door=='load_encoder').load_encoder(trained)
        keys = read_keys(trained)
    else:
        learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny)
        keys,later = item_keys(learn.dls.train_ds),more.assign(is_valid=more.index%5==1)
        with learn.no_bar(), learn.no_logging(): learn.fit(1)
        assert len(learn.dls.valid_ds)==15 # its own
        if door=='pickle': learn.export(tmp_path/'e.pkl'); learn = load_learner(tmp_path/'e.pkl')
        learn.dls = every = classifier_dls(later, tiny_tok(), bs=8, device='cpu')
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    old,now = (item_keys(o.valid_ds) for o in (every, learn.dls))
    n = np.isin(old, keys).sum()
    assert 0<n<len(old) and now.tolist()==old[~np.isin(old, keys)].tolist()
    assert caplog.text.count(f'already trained on {n} of the {len(old)} held-out rows, so the others alone are scored')==1

def test_an_encoder_is_not_scored_on_rows_that_it_was_trained_on(tiny, trained, caplog):
    n = in_keys(more.text, read_keys(trained)).sum()
    compare_encoders(more, [tiny, trained])
    assert f'already trained on {n} of the 60 labelled rows, so the others alone are scored' in caplog.text
    with pytest.raises(ValueError, match='trained on all labelled rows'): compare_encoders(half[in_keys(half.text, read_keys(trained))], trained)
    rows = more.assign(audit=more.index%2==0)
    assert standing(rows, str(tiny)).n_audit==30
    caplog.clear()
    now,k = standing(rows, str(trained)),in_keys(rows.text[rows.audit], read_keys(trained)).sum()
    assert now.n_audit==30-k and f'; {k} more are not scored, since the encoder was trained on them' in str(now) and 'trained on' not in caplog.text # a session asks after each batch
    layer_probes(str(trained), more)
    assert 'so the accuracies are too good' in caplog.text

def test_where_all_were_trained_on_none_is_scored(trained, tmp_path, caplog):
    df = more.assign(is_valid=lambda d: d.text.map(text_key).isin(read_keys(trained)) & (d.index%2>0))
    n = df.is_valid.sum()
    stage = fine_tune_classifier(df, trained, tmp_path/'out', epochs=.1, bs=8, refit=True)
    assert f"already trained on {n} of the {n} held-out rows, so nothing is scored" in caplog.text
    assert stage.score is None and not stage.metrics and 'accuracy' not in stage.table() and 'no row was scored' in stage.interval()
    assert Stage.load(tmp_path/'out/record.json').score is None and from_hf(tmp_path/'out')('a film')
    learn = classifier_learner(classifier_dls(df, trained, bs=8, device='cpu'), trained)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert not len(learn.dls.valid_ds) and learn.recorder.values[-1][1] is None
    for f in (leaderboard, ulmfit, label_curve):
        kw = dict(archs=trained, entries=['TF-IDF']) if f is leaderboard else dict(arch=trained)
        with pytest.raises(ValueError, match='trained on all'): f(df, **kw)

# ---- intervals

def test_an_interval_is_never_of_width_0():
    for a in (np.ones(40), np.zeros(40), np.ones((3,40)), np.full(7, 1.)):
        _,low,high = mean_interval(a)
        assert low<high
    assert np.allclose(mean_interval(np.ones(40)), (1, .9124, 1), atol=1e-4)
    assert mean_interval(np.ones(40), np.arange(40)//10)[1]<.6 # four groups
    board = leaderboard(pd.DataFrame(dict(text=[f'{w} {i}' for i in range(20) for w in ('good','bad')], label=['a','b']*20)), entries=['TF-IDF'], minutes=1, log=lambda o: None)
    score,low,high = board.gain('TF-IDF')
    assert score==1 and low<.95 and '0.912 to 1.000' in board.sentences()[0]
    assert all(0<=low<=k/n<=high<=1 for n in range(1, 99) for k in range(n+1) for low,high in [wilson(k, n)])
    for a,b,groups in ((1,1,None), (1,0,None), (0,1,np.arange(40)//10), (.5,.5,None)):
        d,low,high = paired_bootstrap(np.full(40, a), np.full(40, b), groups=groups)
        assert d==a-b and -1<=low<=d<=high<=1 and high-low>.05
    assert verdict_on(np.ones(40), {'rival':np.ones(40)}).says().endswith('(95 % interval -0.088 to 0.088)')
    for a,groups in (([-2.],None), ([-2.,-1.,-4.],['a']*3)): # what one row or group says is unknown
        assert fmt_range(*mean_interval(a, groups)[1:])==fmt_range(*paired_bootstrap(a, 0, groups=groups)[1:])=='unknown'

@pytest.mark.parametrize('score', ['f1','f1_macro','average_precision','roc_auc'])
def test_an_interval_of_a_score_as_a_whole_has_its_ends(score):
    rng = np.random.default_rng(0)
    for n,k in ((12,1), (25,2), (60,3)):
        y = (np.arange(n)<k).astype(int)
        for s in (rng.random(n)+.3*y, .2+.6*y, .8-.6*y):
            values = row_scores(task := set_score(SingleLabel(['a','b']), score), np.stack([1.5-s, s], 1)/1.5, y)
            mean,low,high = mean_interval(values, name=task.score_name)
            assert 0<=low<=mean<=high<=1 and mean==pytest.approx(values.mean()), (n, mean, low, high)

def test_intervals_of_few_groups_contain_the_truth():
    rng,inside = np.random.default_rng(0),[]
    for n in [3,5,10]*60:
        who = np.repeat(np.arange(n), 10)
        _,low,high = paired_bootstrap(rng.random(10*n)<rng.beta(5, 1.25, n)[who], 0, n=300, groups=who)
        inside.append(low<=.8<=high)
    assert np.mean(inside)>.9 # .83 with percentiles alone

def test_groups_are_drawn_whole(tiny):
    a,who = np.repeat([1,0,1,1,0,1], 10),np.repeat(np.arange(6), 10)
    one,many = paired_bootstrap(a, 0*a),paired_bootstrap(a, 0*a, groups=who)
    assert one[0]==many[0] and many[2]-many[1]>2*(one[2]-one[1])
    df = pd.concat([tiny_df().drop(columns='is_valid')]*3, ignore_index=True).assign(who=lambda d: d.index%60)
    boards = [leaderboard(df.assign(text=df.text+df.index.astype(str)), entries=['TF-IDF'], minutes=1, group_col='who', log=lambda o: None) for _ in range(1)]
    b = boards[0]
    groups,b.groups,b._gains = b.groups,None,{}
    narrow = b.gain('TF-IDF'); b.groups,b._gains = groups,{}
    assert np.diff(b.gain('TF-IDF')[1:])>1.2*np.diff(narrow[1:])
    stage = fine_tune_classifier(df, tiny, epochs=.1, bs=8, group_col='who')
    assert len(stage.groups['score'])==len(stage.score) and type(stage.contrasted) is bool and type(stage.cross_validated) is float
    report = ulmfit(df, arch=tiny, group_col='who', recipe=dict(lm=dict(objective='none'), classifier=dict(epochs=.1, bs=8), run=dict(compare=('tfidf',))))
    g = report.gains().query('what=="against TF-IDF"').iloc[0]
    assert 'McNemar' not in g.says # whose p is of rows
    a,b = (o.score for o in (report.final[0], report.named['TF-IDF'][0]))
    assert np.allclose((g.low,g.high), paired_bootstrap(a, b, groups=report.final[0].groups['score'])[1:])
    learn = classifier_learner(classifier_dls(df.assign(who=df.index%6), tiny, group_col='who', bs=8), tiny)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    row,score = learn.verdict().iloc[0],evaluate(learn)[1]
    assert np.allclose(row, mean_interval(score, item_keys(learn.dls.valid_ds, 'group'))) and row['to']-row['from']>np.diff(mean_interval(score)[1:])

def test_only_names_and_directories_are_looked_up(monkeypatch):
    "A config is iterable, and its keys are no checkpoints"
    asked = []
    monkeypatch.setattr(labels, 'resolve_arch', lambda o: asked.append(o) or resolve_arch(o))
    assert not len(labels.trained_keys(tiny_arch('bert'))) and not len(labels.trained_keys(None)) and asked==[]
    assert not len(labels.trained_keys(['wiki-mini', tiny_arch('bert')])) and asked==['wiki-mini']

def test_groups_in_both_parts_are_told_where_a_column_decides(caplog):
    df = tiny_df().assign(is_valid=lambda d: np.arange(len(d))%4==0, who=lambda d: [f'customer {i%8//2}' for i in range(len(d))])
    doors = dict(split=lambda d: split_rows(d, group_col='who'), rows=lambda d: Rows(d, group_col='who').hold_out(),
                 dls=lambda d: classifier_dls(d, tiny_tok(), group_col='who'),
                 leaderboard=lambda d: leaderboard(d, entries=['TF-IDF'], minutes=1, group_col='who', log=lambda o: None))
    for name,door in doors.items():
        caplog.clear()
        door(df)
        assert caplog.text.count("2 of 4 groups of 'who' have rows in training and in validation, since the column 'is_valid' decides")==1, name
        caplog.clear()
        door(df.assign(is_valid=df.who=='customer 1'))
        assert 'groups of' not in caplog.text, name
    test = df.drop(columns='is_valid')
    for f in (lambda d: Rows(d, group_col='who').add_test(test), lambda d: leaderboard(d, test=test, entries=['TF-IDF'], minutes=1, group_col='who', log=lambda o: None)):
        caplog.clear()
        f(test.assign(text=test.text+' again', who=test.who.replace('customer 3', 'customer 9')))
        assert caplog.text.count("3 of 5 groups of 'who' have rows in training and in test")==1
