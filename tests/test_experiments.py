"Label curves and restarts: which rows, what is kept when a run is stopped, who wins"
import shutil
from dataclasses import replace
import numpy as np, pandas as pd, pytest
from fastformers.ulmfit import experiments
from types import SimpleNamespace as NS
from fastformers.ulmfit.experiments import LabelCurve, best_of, drawn, label_curve, tfidf_hits
from fastformers.learner.core import lm_learner
from fastformers.data.block import lm_dls
from fastformers.ulmfit.recipe import Recipe
from fastformers.ulmfit.stage import Stage
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

df = tiny_df()
few = dict(sizes=(8,20), seeds=(1,2), min_steps=5)

@pytest.fixture(scope='module')
def body(tmp_path_factory):
    path = tmp_path_factory.mktemp('body')/'body'
    lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=8), tiny_arch('bert')).save_encoder(path)
    return path

class Calls(list): stop = None

@pytest.fixture
def calls(monkeypatch):
    "Instead of training: notes what was asked for; a classifier is right where the row number is a multiple of its seed"
    res = Calls()
    def note(*o):
        res.append(o)
        if len(res)==res.stop: raise KeyboardInterrupt
    def classify(data, arch, seed, epochs, **kwargs):
        note(str(arch), int((~data.is_valid).sum()), seed, epochs, sorted(data.text[~data.is_valid]))
        n = int(data.is_valid.sum())
        return Stage('classifier', seed, score=(np.arange(n)%seed==0)*1., weight=np.ones(n))
    def adapt(texts, arch, path, resume, seed, **kwargs):
        note(str(arch), len(texts), 'LM', None, sorted(texts))
        path.mkdir(); (path/'stage.json').write_text('{"format": 1}')
        return Stage('target LM')
    monkeypatch.setattr(experiments, 'fine_tune_classifier', classify); monkeypatch.setattr(experiments, 'fine_tune_lm', adapt)
    return res

def test_small_samples_are_in_large_ones_and_hold_each_class(calls, body):
    label_curve(df, arch=body, **few)
    rows = {(n,seed):set(texts) for _,n,seed,_,texts in calls if seed!='LM'}
    assert set(rows)=={(8,1),(8,2),(20,1),(20,2)}
    for seed in (1,2):
        assert rows[8,seed] <= rows[20,seed]
        assert set(df.label[df.text.isin(rows[8,seed])])==set(df.label)
    assert rows[8,1]!=rows[8,2]

def test_held_out_rows_are_never_learnt_from(calls, body):
    label_curve(df, arch=body, valid_col='is_valid', unlabelled=df, **few)
    held = set(df.text[df.is_valid])
    assert held and all(not held&set(texts) for *_,texts in calls)

def test_few_labels_get_more_epochs(calls, body):
    label_curve(df, arch=body, sizes=(8,20), seeds=(1,), min_steps=50)
    epochs = {n:e for _,n,seed,e,_ in calls if seed!='LM'}
    assert epochs=={8:50, 20:50}
    del calls[:]
    label_curve(df, arch=body, sizes=(8,), seeds=(1,), min_steps=1)
    assert calls[0][3]==Recipe().classifier.epochs

@pytest.mark.parametrize('stop', [1,4,5,8])
def test_a_stopped_curve_goes_on(calls, body, tmp_path, stop):
    whole = label_curve(df, arch=body, path=tmp_path/'whole', **few)
    n = len(calls); calls.clear(); calls.stop = stop
    with pytest.raises(KeyboardInterrupt): label_curve(df, arch=body, path=tmp_path/'curve', **few)
    calls.stop = None
    again = label_curve(df, arch=body, path=tmp_path/'curve', **few)
    assert len(calls)==n+1 # what was under way begins anew, nothing else
    pd.testing.assert_frame_equal(again.table.drop(columns='seconds'), whole.table.drop(columns='seconds'))

def test_another_curve_is_refused(calls, body, tmp_path):
    label_curve(df, arch=body, path=tmp_path/'curve', **few)
    n = len(calls)
    with pytest.raises(ValueError, match=f'{tmp_path/"curve"} holds another run'): label_curve(df.iloc[:-1], arch=body, path=tmp_path/'curve', **few)
    assert len(label_curve(df, arch=body, path=tmp_path/'curve', **{**few, 'sizes':(8,)}).table)==6 and len(calls)==n

def test_what_a_recipe_says_of_classifiers_reaches_them_and_is_part_of_the_curve(calls, body, tmp_path, monkeypatch):
    seen,note = [],experiments.fine_tune_classifier
    monkeypatch.setattr(experiments, 'fine_tune_classifier', lambda *args, **kwargs: (seen.append(kwargs), note(*args, **kwargs))[1])
    r = Recipe().replace(lm=dict(objective='none'), classifier=dict(layers='-2, -1', adapters='bottleneck', aux_lm=.5))
    label_curve(df, arch=body, recipe=r, path=tmp_path/'curve', **few)
    assert len(seen)==4 and all((o['layers'], o['adapters'], o['aux_lm'])==((-2,-1), 'bottleneck', .5) for o in seen)
    label_curve(df, arch=body, recipe=r, path=tmp_path/'curve', **few) # goes on
    assert len(seen)==4
    with pytest.raises(ValueError, match='adapters was bottleneck, is bitfit'): label_curve(df, arch=body, recipe=r.replace(classifier=dict(adapters='bitfit')), path=tmp_path/'curve', **few)
    with pytest.raises(ValueError, match='t5 has no masked LM'): label_curve(df, arch=tiny_arch('t5'), recipe=r, path=tmp_path/'other', **few)
    assert not (tmp_path/'other').exists()

def test_damaged_rows_are_said(calls, body, tmp_path):
    label_curve(df, arch=body, path=tmp_path/'curve', **few)
    f = tmp_path/'curve'/'rows.json'
    f.write_text(f.read_text()[:-5])
    with pytest.raises(ValueError, match='rows.json is damaged'): label_curve(df, arch=body, path=tmp_path/'curve', **few)

def test_without_stage_2(calls, body):
    r = Recipe()
    curve = label_curve(df, arch=body, recipe=replace(r, lm=replace(r.lm, objective='none')), **few)
    assert set(curve.table.arm)=={'TF-IDF + logistic regression','without stage 2'} and not [o for o in calls if o[2]=='LM'] and curve.gains.empty
    curve.plot()

@pytest.mark.parametrize('change, says', [(dict(sizes=()), 'one for each class'), (dict(sizes=(1,)), 'one for each class'), (dict(sizes=(10**5,)), 'are left for training'),
    (dict(df=df.assign(label=.5)), 'one class a row'), (dict(df=df.assign(label='a; b')), 'one class a row'), (dict(label_col='gone'), 'gone'), (dict(df=df.assign(text=np.nan)), 'text'),
    (dict(df=df.assign(label=[None, *df.label[1:]])), 'label')])
def test_bad_input_is_found_before_training(calls, body, change, says):
    with pytest.raises((ValueError,TypeError), match=says): label_curve(**{**dict(df=df, arch=body), **few, **change})
    assert not calls

def test_the_baseline_takes_odd_texts():
    odd = pd.DataFrame(dict(text=['', '🙂', 'a', '!', 'x'*100_000, 'b'], label=list('ababab')))
    assert tfidf_hits(odd, odd)[[0,2]].all() or tfidf_hits(odd, odd)[[1,3]].all()        # what has no word is all one class
    assert tfidf_hits(odd.iloc[:4], odd).tolist()==[True,False]*3                         # no word at all: the class that most rows have
    assert tfidf_hits(odd[odd.label=='a'], odd).tolist()==[True,False]*3                 # one class: it says that one
    pairs = odd.assign(b=odd.text[::-1].tolist())
    assert len(tfidf_hits(pairs, pairs, ['text','b']))==6

def test_gains_are_those_of_the_rows():
    rows = [dict(arm=arm, size=8, seed=s, hits=[h]*40, seconds=1.) for s in (1,2) for arm,h in (('with stage 2',True),('without stage 2',False))]
    g = LabelCurve(rows).gains.loc[8]
    assert (g.gain,g.low,g.high,g.says)==(1.,1.,1.,'better')

def test_best_of_keeps_one_learner_and_all_scores():
    made,held = {},lambda *texts: NS(dls=NS(valid_ds=NS(tls=[texts])))
    def fit(seed, texts=('a','b')):
        made[seed] = Stage('classifier', seed, score=np.full(10, [.2,.9,.5][seed]), weight=np.ones(10), learner=held(*texts), score_name='accuracy')
        return made[seed]
    runs = best_of(fit, range(3))
    assert runs.best is made[1] and [made[i].learner is not None for i in range(3)]==[False,True,False]
    with pytest.raises(ValueError, match='different rows'): best_of(lambda seed: fit(seed, ('a',str(seed))), range(3))
    assert runs.table.seed.tolist()==[1,2,0] and 'best of 3: seed 1' in repr(runs) and '0.533' in repr(runs)

def writes(tmp_path, same=True):
    def fit(seed):
        path = tmp_path/('run' if same else f'run{seed}')
        shutil.rmtree(path, ignore_errors=True); path.mkdir(); (path/'seed').write_text(str(seed))
        return Stage('classifier', seed, path=path, score=np.full(10, [.2,.9,.5,.95,.1][seed]), weight=np.ones(10), learner=NS(dls=NS(valid_ds=NS(tls=[('a',)]))), score_name='accuracy')
    return fit

@pytest.mark.parametrize('seeds, best', [((0,1,2), 1), ((1,0,2), 1), ((0,1,2,3), 3), ((1,), 1)])
def test_the_directory_is_that_of_the_best(tmp_path, seeds, best):
    runs = best_of(writes(tmp_path), seeds)
    assert (runs.best.path/'seed').read_text()==str(best)==str(runs.best.seed) and [o.name for o in tmp_path.iterdir()]==['run']

def test_directories_of_their_own_stay(tmp_path):
    best_of(writes(tmp_path, False), (0,1,2))
    assert sorted(o.name for o in tmp_path.iterdir())==['run0','run1','run2']

def test_the_best_is_still_there_after_an_interrupted_run(tmp_path):
    fit = writes(tmp_path)
    def stops(seed):
        if seed==2: raise KeyboardInterrupt
        return fit(seed)
    with pytest.raises(KeyboardInterrupt): best_of(stops, (1,0,2))
    assert (tmp_path/'run'/'seed').read_text()=='1' and [o.name for o in tmp_path.iterdir()]==['run']

@pytest.mark.parametrize('change', [dict(sizes=10), dict(seeds=1), dict(seeds=(-1,)), dict(sizes=(10.5,)), dict(sizes='12'), dict(sizes=(float('inf'),)), dict(sizes=(float('nan'),))])
def test_numbers_are_whole(body, calls, change):
    with pytest.raises(ValueError, match='is a list of whole numbers'): label_curve(**{**dict(df=df, arch=body), **few, **change})

def test_repeats_are_one_run(body, calls):
    assert {o['size'] for o in label_curve(df, arch=body, sizes=(8.,), seeds=(1,), min_steps=1).rows}=={8}
    twice,once = (label_curve(df, arch=body, sizes=(8,)*n, seeds=(1,)*n, min_steps=1) for n in (2,1))
    assert len(twice.rows)==len(once.rows)

def test_drawn_is_an_order():
    labels = np.repeat(list('aab'), 7)
    assert sorted(drawn(labels, 3))==list(range(21)) and set(labels[drawn(labels, 3)[:2]])=={'a','b'}
