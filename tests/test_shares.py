"Shares of classes in many texts, corrected by labelled rows: numbers, doors, errors, coverage"
import numpy as np, pandas as pd, pytest, torch
from fastformers.cli import main
from fastformers.inference.answers import BasePredictor
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.inference.shares import powered_shares
from fastformers.stats import wilson
from fastformers.tasks.core import MultiLabel, tasks
from fastformers.text.core import text_key

class Stored(BasePredictor):
    "Scores of texts that are numbers of rows"
    pairs,chunk = False,100
    def __init__(self, task, scores): self.task,self.values = task,torch.as_tensor(scores, dtype=torch.float32)
    def scores(self, texts, bs=64): return self.values[[int(o) for o in texts]]

def world(n_texts=2000, n_out=4, skill=3., several=False, seed=0):
    "A predictor, texts and a table of their labels; the first class is common, the last rare"
    rng,names = np.random.default_rng(seed),[f'c{i}' for i in range(n_out)]
    p = np.array([.6,.28,.1,.02])[:n_out]
    if several:
        y = rng.random((n_texts,n_out))<p
        scores = 1/(1+np.exp(-(skill*(y-.5)+rng.normal(0, 1, y.shape))))
        labels = [[n for n,o in zip(names, r) if o] for r in y]
        task = MultiLabel(names, 'label')
    else:
        at = rng.choice(n_out, n_texts, p=p/p.sum())
        y = np.eye(n_out)[at]
        z = np.exp(skill*y+rng.normal(0, 1, y.shape))
        scores,labels,task = z/z.sum(1, keepdims=True),[names[i] for i in at],tasks['single'](names, 'label')
    texts = [*map(str, range(n_texts))]
    return Stored(task, scores), texts, pd.DataFrame(dict(text=texts, label=labels)), np.asarray(y, float).mean(0)

def width(t): return (t['to']-t['from']).mean()
def own(t): return (t.audit_to-t.audit_from).mean()

@pytest.mark.parametrize('several', [False,True])
@pytest.mark.parametrize('n', [12,100])
def test_intervals_hold_the_truth_and_are_narrower(several, n):
    held,widths = [],[]
    for seed in range(40):
        p,texts,df,truth = world(several=several, seed=seed)
        t = p.shares(texts, df.sample(n, random_state=seed))
        held.append((t['from']<=truth)&(truth<=t['to']))
        widths.append(width(t)/own(t))
        assert (t['from']<t['to']).all() and t['from'].min()>=0 and t['to'].max()<=1
    assert np.mean(held)>=.93 and np.mean(widths)<(.8 if n==100 else 1)

def test_columns_are_what_they_say():
    p,texts,df,_ = world()
    audit = df.sample(50, random_state=0)
    t = p.shares(iter(texts), audit=audit)
    assert [*t]==['naive','corrected','from','to','audit','audit_from','audit_to'] and [*t.index]==p.labels
    assert np.allclose(t.naive, np.bincount(p.values.argmax(1), minlength=4)/2000)
    own = audit.label.value_counts().reindex(p.labels).fillna(0)
    assert np.allclose(t.audit, own/50) and np.allclose(t.audit_from, wilson(own, 50)[0])
    assert t.equals(p.shares(texts, audit)), 'an iterator is read in parts'

def test_a_useless_classifier_does_no_harm():
    p,texts,df,_ = world(skill=0.)
    t = p.shares(texts, df.sample(200, random_state=0))
    assert abs(t.corrected-t.audit).max()<.02 and width(t)<1.1*own(t)

def test_lambda_is_that_of_the_paper():
    "With many rows, the half rows do not matter"
    rng = np.random.default_rng(0)
    y = (rng.random((5000,1))<.3)*1.
    f,F = y*.5+rng.random((5000,1))*.5, .15+rng.random((20_000,1))*.5
    share,low,high = powered_shares(y, f, F.mean(0), F.var(0), 20_000)
    lam = np.cov(y[:,0], f[:,0], ddof=0)[0,1]/f.var()/(1+5000/20_000)
    assert abs(share-(lam*F.mean()+(y-lam*f).mean()))<1e-3
    half = 1.96*np.sqrt((y-lam*f).var()/5000+lam**2*F.var()/20_000)
    assert abs((high-low)/2-half)<1e-3

def test_rows_that_were_chosen_or_trained_on_do_not_count(caplog):
    p,texts,df,_ = world()
    audit = df.sample(60, random_state=0)
    want = p.shares(texts, audit[:40])
    assert want.equals(p.shares(texts, audit.assign(audit=np.arange(60)<40)))
    p.trained_on = np.array([*map(text_key, audit.text[40:])], np.uint64)
    assert want.equals(p.shares(texts, audit)) and '20 of the 60 audit rows' in caplog.text

def test_labels_are_read_as_they_are_written():
    p,texts,df,_ = world(several=True)
    audit = df.sample(50, random_state=0)
    want = p.shares(texts, audit)
    assert want.equals(p.shares(texts, audit.assign(label=audit.label.map(';'.join))))
    flags = audit.assign(**{n:[int(n in o) for o in audit.label] for n in p.labels})
    assert want.equals(p.shares(texts, flags, label_col=p.labels))
    p,texts,df,_ = world(n_out=2)
    p.task.labels = ['0','1']
    assert p.shares(texts, df[:50].assign(label=df.label[:50].map(dict(c0=0, c1=1)))).audit['1']==(df.label[:50]=='c1').mean()

@pytest.mark.parametrize('flag', [str, lambda o: o or None, int, lambda o: str(o).lower()])
def test_random_rows_are_marked_in_any_form_and_count_once(flag):
    "As in a file read as text, in a table joined with older rows, and in one that two people have labelled"
    p,texts,df,_ = world()
    audit = df.sample(60, random_state=0)
    want,marked = p.shares(texts, audit[:40]),audit.assign(audit=[flag(i<40) for i in range(60)])
    assert want.equals(p.shares(texts, marked))
    people = pd.concat([marked.assign(label='c0', by='a', time='1'), marked.assign(by='b', time='2')])
    assert want.equals(p.shares(texts, people))

@pytest.mark.parametrize('change,words', [
    (lambda o: o.rename(columns=dict(text='txt')), 'did you mean txt?'), (lambda o: o.drop(columns='label'), "'label' is not a column"),
    (lambda o: o.assign(label=['other',*o.label[1:]]), "'other' is no class; classes are c0, c1, c2, c3"),
    (lambda o: o.assign(label=[None,*o.label[1:]]), '1 of 50 audit rows have no label'), (lambda o: o[:9], 'expected 10 audit rows or more, got 9'),
    (lambda o: o[:0], 'no rows')])
def test_errors_say_what_to_do(change, words):
    p,texts,df,_ = world()
    with pytest.raises(ValueError) as e: p.shares(texts, change(df[:50]))
    assert words in str(e.value)

@pytest.mark.parametrize('name', ['regression','tags','choice'])
def test_shares_are_of_classes(name):
    p,texts,df,_ = world()
    p.task = tasks.find(name)(['a'] if name!='choice' else ())
    with pytest.raises(ValueError, match='shares are of classes'): p.shares(texts, df)

def test_every_predictor_has_it_and_fastai_is_not_needed(tmp_path, without_fastai):
    df = pd.DataFrame(dict(text=['good film','bad film','good soup','bad soup']*10, label=['yes','no']*20))
    model = TextBaseline.fit(df.text+' of ours', df.label)
    model.save(tmp_path/'m')
    want = model.shares(df.text, df)
    assert Ensemble([model, model]).shares(df.text, df).equals(want)
    assert from_hf(tmp_path/'m').shares(df.text, df).equals(want)
    without_fastai(f"""import sys, pandas as pd
from fastformers.inference.predictor import from_hf
df = pd.DataFrame(dict(text=['good film','bad film']*10, label=['yes','no']*10))
assert from_hf({str(tmp_path/'m')!r}).shares(df.text, df).audit['yes']==.5 and 'fastai' not in sys.modules""")

def test_the_command_prints_and_writes_a_table(tmp_path, capsys):
    df = pd.DataFrame(dict(said=['good film','bad film','good soup','bad soup']*10, kind=['yes','no']*20))
    TextBaseline.fit(df.said+' of ours', df.kind).save(tmp_path/'m')
    df[['said']].to_csv(tmp_path/'new.csv', index=False); df[:20].to_csv(tmp_path/'rows.csv', index=False)
    def run(*args): return main(['shares', str(tmp_path/'m'), *map(str, args), '--text-col', 'said'])
    files = tmp_path/'new.csv','--audit',tmp_path/'rows.csv'
    assert run(*files, '--label-col', 'kind', '--out', tmp_path/'out.csv')==0
    assert 'corrected' in capsys.readouterr().out
    assert pd.read_csv(tmp_path/'out.csv', index_col='label').naive.to_dict()=={'no':.5,'yes':.5}
    for args,words in ((files, "'label' is not a column"), ((*files, '--label-col', 'kind', '--out', 'x.xlsx'), 'got .xlsx'),
                       ((tmp_path/'none.csv', '--audit', tmp_path/'rows.csv', '--label-col', 'kind'), 'does not exist')):
        assert run(*args)==2 and words in capsys.readouterr().err
