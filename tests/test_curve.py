"A learning curve is made of the runs that it names and compares what is comparable"
import numpy as np, pandas as pd, pytest
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit import curve as curves
from fastformers.ulmfit.curve import LabelCurve, label_curve, nested_order
from fastformers.ulmfit.recipe import Recipe
from fastformers.ulmfit.scores import tfidf_hits
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

df = pd.concat([tiny_df()]*2, ignore_index=True)
df['text'] = [f'{t} {i}' for i,t in enumerate(df.text)]
quick = Recipe().replace(lm=dict(epochs=.2, seq_len=32, bs=8), classifier=dict(epochs=.2, bs=8, max_len=16))
few = dict(sizes=(6,12), seeds=(1,2), recipe=quick, min_steps=1)

@pytest.fixture(scope='module')
def body(tmp_path_factory):
    path = tmp_path_factory.mktemp('body')/'lm'
    fine_tune_lm(df, tiny_arch('bert'), path, tok=tiny_tok('bert'), epochs=.1, bs=8, seq_len=32)
    return path

@pytest.fixture
def calls(monkeypatch):
    "The classifiers that are trained: (rows of training, held-out texts, seed)"
    res = []
    def fit(table, arch, seed=None, **kwargs):
        res.append((table[~table.is_valid].text.tolist(), table[table.is_valid].text.tolist(), seed))
        return type('S', (), dict(score=np.ones(int(table.is_valid.sum()))))()
    monkeypatch.setattr(curves, 'fine_tune_classifier', fit)
    return res

def test_a_curve_is_made_of_nested_samples_on_the_same_held_out_rows(body, calls):
    curve = label_curve(df, arch=body, **few)
    assert len(curve.rows)==3*2*2 and len(calls)==2*2*2
    assert len({tuple(v) for _,v,_ in calls})==1
    for seed in (1,2):
        small,large = ([set(t) for t,_,s in calls if s==seed and len(t)==n] for n in (6,12))
        assert all(o==small[0] for o in small) and small[0]<large[0]
    assert not {t for ts,_,_ in calls for t in ts} & set(calls[0][1])

@pytest.mark.parametrize('change,words', [(dict(sizes=(1,)), 'one a class'), (dict(sizes=(10**6,)), 'the training rows'), (dict(label_col='stars'), 'stars')])
def test_what_cannot_be_drawn_is_refused(body, calls, change, words):
    with pytest.raises((ValueError,KeyError), match=words): label_curve(df, arch=body, **{**few, **change})

def test_gains_compare_the_same_seeds():
    rows = [dict(arm=a, labels=9, seed=s, hits=h, seconds=1.) for a,h in (('with stage 2',[1,1,1,1]),('without stage 2',[1,0,0,1])) for s in (1,2)]
    g = LabelCurve(rows).gains
    assert g.gain[9]==.5 and g.says[9] in ('better','no measurable difference')
    assert LabelCurve(rows[:2]).gains.empty

def test_an_order_holds_each_class_first():
    labels = np.repeat(list('aab'), 7)
    assert sorted(nested_order(labels, 3))==list(range(21)) and set(labels[nested_order(labels, 3)[:2]])=={'a','b'}

def test_tfidf_of_pairs():
    pairs = df.assign(other='and so on')
    assert tfidf_hits(pairs[:60], pairs[60:], text_col=['text','other']).shape==(len(df)-60,)
