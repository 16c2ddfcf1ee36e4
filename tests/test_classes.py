"What a class is: its name, texts of no class, and classes that come and go"
import json, logging, shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, torch
from fastformers.cli import main
from fastformers.data.block import classifier_dls
from fastformers.data.labels import row_keys
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.names import from_names, read_names
from fastformers.inference.novelty import Kept, none_of
from fastformers.inference.output_layer import fit_output_layer, fit_row, output_layer, set_output_layer
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.learner.choose import choose_names
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.models.heads import LinearHead, PoolingHead
from fastformers.tasks.core import SingleLabel
from fastformers.testing import tiny_arch, tiny_df, tiny_tags, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.stage import fine_tune_classifier

@pytest.fixture(scope='module')
def rows():
    df = intents(None)
    return df[df.label.isin(['banking','travel','kitchen_and_dining','work'])].sample(360, random_state=0).reset_index(drop=True)[['text','label']]

@pytest.fixture(scope='module')
def probe(rows, tmp_path_factory):
    "The directory of a probe of three classes of MiniLM, the rows of the fourth, and of none"
    df = rows[rows.label!='work'].assign(is_valid=lambda o: np.arange(len(o))%3==0)
    learn = classifier_learner(classifier_dls(df, 'minilm', bs=16), 'minilm', pool='mean', precision='fp32').fit_probe()
    return learn.to_hf(tmp_path_factory.mktemp('probe')/'clf')

@pytest.fixture
def clf(probe): return from_hf(probe)

def test_threads_share_a_predictor(clf, rows):
    "Each text gets its own answer, vector and novelty, whatever other threads ask at the same time"
    parts = [rows.text.tolist()[i:i+1+i%5] for i in range(0, 96, 4)]
    for f in (lambda o: [a['score'] for a in clf(o)], clf.novelty, lambda o: [a['novelty'] for a in clf(o, unknown=.1)]):
        want = [f(o) for o in parts]
        with ThreadPoolExecutor(4) as pool: got = [*pool.map(f, parts)]
        for a,b in zip(want, got, strict=True): assert np.allclose(a, b, atol=.02)

def test_what_is_kept(probe, rows):
    kept = Kept.load(probe)
    n = (rows.label!='work').sum()
    assert len(kept.inputs)==len(kept.classes)==len(kept.vectors) and abs(len(kept.inputs)-n*2/3)<3 and abs(len(kept.distances)-n/3)<3
    assert (probe/'kept.safetensors').stat().st_size<300_000 and not any(t.encode() in (probe/'kept.safetensors').read_bytes() for t in rows.text[:50])

def test_novelty_is_high_for_texts_of_no_class(clf, rows):
    known = clf.novelty(intents(None).query("label in ['banking','travel','kitchen_and_dining']").text.tolist()[-300:])
    other = clf.novelty(['the mitochondria is the powerhouse of the cell', 'prove that the square root of two is irrational',
                         'the cat sat on the mat and looked at the moon', 'colourless green ideas sleep furiously'])
    assert (known>.95).mean()<.12 and (other>.9).all() and known.min()>=0 and other.max()<1

def test_texts_labelled_as_none_of_the_classes_are_foreign(rows, tmp_path):
    df = rows.assign(label=rows.label.replace('work', 'None of these'), is_valid=np.arange(len(rows))%3==0)
    learn = classifier_learner(classifier_dls(df, 'minilm', bs=16), 'minilm', pool='mean', precision='fp32').fit_probe()
    clf = from_hf(learn.to_hf(tmp_path/'clf'))
    work,kept = rows.label=='work',clf.kept
    assert len(kept.foreign)==(work&~df.is_valid).sum() and len(kept.vectors)==(~work&~df.is_valid).sum() and len(kept.inputs)==(~df.is_valid).sum()
    assert len(kept.distances)==(~work&df.is_valid).sum() # nothing foreign says what is usual
    every = intents(None)
    def area(foreign):
        kept.foreign = foreign
        a,b = (kept.distance(clf.vectors(o)) for o in (every[every.label=='travel'].text.tolist()[-150:], every[every.label=='work'].text.tolist()[-150:]))
        return (b[:,None]>a).mean()
    assert area(kept.foreign)>area(None)+.01
    assert none_of(['none', 'OOS', 'out_of_scope', 'nonexistent', 'other'])==[0,1,2]

def test_texts_without_labels_move_names_to_their_classes(tmp_path):
    df = intents(None).assign(label=lambda o: o.intent)
    df = df[df.label.isin(sorted(df.label.unique())[:20])].sample(700, random_state=0)
    new,texts = df[:200],df.text[200:].tolist()
    def right(clf): return np.mean([o['label']==l for o,l in zip(clf(new.text.tolist()), new.label)])
    names = sorted(df.label.unique())
    alone,moved = from_names(names),from_names(names, unlabelled=texts)
    assert right(moved)>right(alone)+.03
    again = from_hf(moved.save(tmp_path/'clf'))
    a,b = (o.scores(new.text[:9].tolist()) for o in (moved, again))
    assert torch.allclose(a, b, atol=1e-6) and len(again.kept.distances)==len({*texts})//5
    assert abs(right(from_names(names, unlabelled=['one text']))-right(alone))<=.02
    for o in ([None], ['text',3]):
        with pytest.raises(Exception, match='text'): from_names(names, unlabelled=o)

def test_classes_are_added_to_names_alone():
    clf = from_names(['banking','travel','cooking'])
    mine = dict(banking='how much is on my account', travel='book me a flight', cooking='a recipe for soup', greeting='good day to you', sport='did our team win')
    clf.add_class('greeting', ['hello there', 'hi, how are you', 'good morning', 'hey', 'good evening to you', 'hello my friend'])
    clf.add_class('sport', ['who won the game', 'the score of the match', 'when is the next race'])
    assert [o['label'] for o in clf([*mine.values()])]==[*mine]
    clf.merge_classes(['banking','travel'], 'business').add_class('music', ['play a song', 'who sings this', 'turn up the radio'])
    found = [o['label'] for o in clf([*mine.values(), 'play my favourite song'])]
    assert found==['business','business','cooking','greeting','sport','music'] and len(clf.kept.classes)==5

def test_unknown_answers_none_and_names_the_nearest_class(clf, tmp_path):
    known,none = clf(['transfer money to my savings account', 'prove that the square root of two is irrational'], unknown=.1)
    assert known['label']==known['nearest']=='banking' and none['label'] is None and none['nearest'] in clf.labels
    frame = clf.predict_frame(pd.DataFrame({'text':['transfer money to my savings account']}), unknown=.1)
    assert list(frame)==['text','label','score','nearest','novelty']
    plain = clf(['transfer money to my savings account'])[0]
    assert abs(plain['score']-known['score'])<1e-6
    copy = from_hf(clf.save(tmp_path/'copy'))
    np.testing.assert_allclose(copy.novelty(['what is this']), clf.novelty(['what is this']), atol=.02)

@pytest.mark.parametrize('unknown,says', [(0, 'share of false alarms'), (1.5, 'share of false alarms'), (.001, '999 or more texts')])
def test_a_share_that_cannot_be_kept(clf, unknown, says):
    with pytest.raises(ValueError, match=says): clf(['x'], unknown=unknown)

def test_who_has_no_novelty(clf, probe, rows, tmp_path):
    bare = classifier_learner(classifier_dls(tiny_df(), tiny_tok('bert')), tiny_arch('bert'))
    with pytest.raises(ValueError, match='keep=0'): from_hf(bare.to_hf(tmp_path/'bare', keep=0))(['a'], unknown=.1)
    tags = classifier_learner(classifier_dls(tiny_tags(), tiny_tok('bert')), tiny_arch('bert')).to_hf(tmp_path/'tags')
    with pytest.raises(ValueError, match='one class a text'): from_hf(tags)(['a'], unknown=.1)
    with pytest.raises(ValueError, match='tags'): from_hf(tags).novelty(['a'])
    pairs = tiny_df().assign(other=lambda o: o.text)
    pairs = classifier_learner(classifier_dls(pairs, tiny_tok('bert'), ['text','other']), tiny_arch('bert')).to_hf(tmp_path/'pairs')
    with pytest.raises(ValueError, match='pairs'): from_hf(pairs).novelty([('a','b')])
    words = TextBaseline.fit(rows.text, rows.label)
    for o in (words, Ensemble([words, words])):
        with pytest.raises(ValueError, match='network'): o.novelty(['a'])
        with pytest.raises(ValueError, match='pooling head'): o.add_class('x', ['a'])
        with pytest.raises(ValueError, match='change in a network'): o.rename_class(o.labels[0], 'x')
    with pytest.raises(ValueError, match='top_k=1'): clf(['a'], unknown=.1, top_k=2)

def test_drift(clf, caplog):
    known = intents(None).query("label=='banking'").text.tolist()[:100]
    new = clf.drift(known+['crypto wallet seed phrase stolen on the blockchain', 'my crypto wallet on the blockchain', 'the blockchain of my crypto wallet']*4)
    assert new.loc['all texts','texts']==112 and new.loc['all texts','novel']>clf.drift(known).loc['all texts','novel']
    assert {'crypto','blockchain'}<={*new.loc['all texts','new words']} and new.loc['banking','from']<=new.loc['banking','novel']<=new.loc['banking','to']
    caplog.clear()
    clf.trained_on = row_keys(pd.DataFrame(dict(text=known)), 'text'); clf.drift(known)
    assert '100 of the 100 texts were in training, with a label or without' in caplog.text
    clf.trained_on = ()
    with pytest.raises(ValueError, match='got none'): clf.drift([])
    named = from_names(['banking','travel']) # nothing was held out, and no text could be novel
    with pytest.raises(ValueError, match='novelty needs 1 or more texts that were new'): named.novelty(['a visa'])
    with pytest.raises(ValueError, match='drift needs 20 or more texts'): named.drift(['a visa'])

def test_add_class(clf, rows, tmp_path, caplog):
    work = rows[rows.label=='work'].text.tolist()
    old = rows[rows.label!='work']
    def right(p, df): return (pd.DataFrame(p(df.text.tolist())).label==df.label.values).mean()
    before = right(clf, old)
    with caplog.at_level(logging.INFO, 'fastformers'): assert clf.add_class('work', work[:40]) is clf
    assert "'work' from 40 texts: of" in caplog.text
    assert right(clf, old)>before-.05 and right(clf, rows[rows.label=='work'][40:])>.7
    again = from_hf(clf.save(tmp_path/'more'))
    assert again.labels==['banking','kitchen_and_dining','travel','work'] and again(work[50])==clf(work[50])
    stage = json.loads((tmp_path/'more'/'stage.json').read_text())
    assert stage['changes']==['added work'] and stage['parent']['stage']=='classifier'
    again.add_class('sport', ['who won the match', 'when does the game start', 'score of the final']) # from a directory that was changed
    assert len(again.labels)==5

def test_what_is_opened_and_saved_is_the_same_classifier(clf, probe, rows, tmp_path):
    again,work = from_hf(clf.save(tmp_path/'same')),rows[rows.label=='work'].text.tolist()
    def read(path, file): return json.loads((path/file).read_text())
    assert read(tmp_path/'same', 'classifier.json')==read(probe, 'classifier.json') and read(probe, 'classifier.json')['base']=='minilm'
    assert read(tmp_path/'same', 'stage.json')==read(probe, 'stage.json') and 'tokenizer' in read(probe, 'stage.json')
    assert torch.equal(again.scores(work), clf.scores(work)) and (again.novelty(work)==clf.novelty(work)).all()
    for p in (clf,again): p.add_class('work', work[:40])
    assert torch.allclose(again.scores(work), clf.scores(work), atol=1e-3) # what is kept is rounded again
    now = read(again.save(tmp_path/'more'), 'classifier.json')
    assert now['base']=='minilm' and not {'rows','scores'} & {*now}, 'those are of other classes'

def plain_row(x, new, old, C, n_out):
    "The row of a new class, by scikit-learn's loss in float64 and to the end; `old` are the log sums of the other classes"
    from scipy.optimize import minimize
    weight = np.where(new, min(1, (~new).sum()/n_out/new.sum()), 1)
    def loss(p):
        s = torch.as_tensor(x)@p[:-1]+p[-1]-torch.as_tensor(old)
        errors = torch.nn.functional.binary_cross_entropy_with_logits(s, torch.as_tensor(new*1.), torch.as_tensor(weight), reduction='sum')
        return errors+(p[:-1]**2).sum()/(2*C)
    def both(p):
        p = torch.tensor(p, requires_grad=True)
        value = loss(p)
        return value.item(), torch.autograd.grad(value, p)[0].numpy()
    return minimize(both, np.zeros(x.shape[1]+1), jac=True, method='L-BFGS-B', options=dict(maxiter=10_000, maxfun=10_000, ftol=1e-15, gtol=1e-9)).x

@pytest.mark.parametrize('head', [LinearHead(40, 6, pool='mean'), PoolingHead(40, 6, pool='mean', lin_ftrs=(), ps=(0.,), norm=None)])
def test_a_row_that_is_fitted_fast_is_the_plain_one(head):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 7, 700)
    x = (rng.normal(size=(7, 40))[y]+1.5*rng.normal(size=(700, 40))).astype(np.float32)
    unit = isinstance(head, LinearHead)
    x = x/np.linalg.norm(x, axis=1, keepdims=True) if unit else 3*x+5
    model = SimpleNamespace(hf=None, head=head, task=SingleLabel([*'abcdef']))
    set_output_layer(model, *fit_output_layer(model, x[y<6], y[y<6]))
    layer,new = output_layer(model),y==6
    x64 = x.astype(float)
    old = np.logaddexp.reduce(x64@layer.weight.detach().numpy().T.astype(float)+layer.bias.detach().numpy(), axis=1)
    mean,std = (0,1) if unit else (x64.mean(0),x64.std(0)+1e-6)
    p = plain_row((x64-mean)/std, new, old, 300 if unit else .1, 6)
    plain = (x64-mean)/std@p[:-1]+p[-1]
    part = fit_row(model, x[::2], new[::2])
    for w,b in (fit_row(model, x, new), fit_row(model, x, new, part)): np.testing.assert_allclose(x@w+b, plain, atol=.02)
    assert np.abs(x@part[0]+part[1]-plain).max()>.5 # the beginning is elsewhere

def test_the_readme_stays_and_names_the_classes_of_now(clf, rows, tmp_path):
    card = clf.card.replace('License: fill in', 'License: MIT')
    (clf.save(tmp_path/'a')/'README.md').write_text(card)
    a = from_hf(tmp_path/'a')
    assert (a.save(tmp_path/'copy')/'README.md').read_text()==card
    a.add_class('work', rows[rows.label=='work'].text.tolist()[:20]).save(tmp_path/'a')
    from_hf(tmp_path/'a').rename_class('work', 'office').save(tmp_path/'a')
    card = (tmp_path/'a'/'README.md').read_text()
    assert 'License: MIT' in card and '`banking`, `kitchen_and_dining`, `travel`, `office`' in card
    assert card.index('After training: added work')<card.index('After training: renamed work to office')

def test_remove_rename_merge(clf, rows):
    text = 'transfer money to my savings account'
    scores = {o['label']:o['score'] for o in clf([text], top_k=None)[0]}
    clf.remove_class('travel')
    left = {o['label']:o['score'] for o in clf([text], top_k=None)[0]}
    assert abs(left['banking']/left['kitchen_and_dining']-scores['banking']/scores['kitchen_and_dining'])<1e-2*scores['banking']/scores['kitchen_and_dining']
    assert clf.rename_class('banking', 'money')([text])[0]['label']=='money' and 'money' in clf.labels
    with pytest.raises(ValueError, match='two classes'): clf.remove_class('money')
    with pytest.raises(ValueError, match='two classes'): clf.merge_classes(['money','kitchen_and_dining'], 'all')
    clf.add_class('work', rows[rows.label=='work'].text.tolist()[:20]).merge_classes(['money','work'], 'office')
    assert clf.labels==['kitchen_and_dining','office'] and clf([text])[0]['label']=='office'

@pytest.mark.parametrize('call,says', [
    (lambda o: o.add_class('banking', ['a']), 'already'), (lambda o: o.add_class(' ', ['a']), 'blank'), (lambda o: o.add_class('new', []), 'got none'),
    (lambda o: o.remove_class('bankin'), 'did you mean banking'), (lambda o: o.rename_class('banking', 'travel'), 'already'),
    (lambda o: o.merge_classes(['banking'], 'x'), 'two classes'), (lambda o: o.merge_classes('banking', 'x'), 'two classes|no class'),
    (lambda o: o.merge_classes(['banking','travel'], 'kitchen_and_dining'), 'already')])
def test_changes_that_cannot_be(clf, call, says):
    with pytest.raises(ValueError, match=says): call(clf)
    assert clf.labels==['banking','kitchen_and_dining','travel'] and clf(['a visa for japan'])[0]['label']=='travel'

def test_texts_of_an_old_class_are_named(clf, rows, caplog):
    with caplog.at_level(logging.WARNING, 'fastformers'): clf.add_class('money', rows[rows.label=='banking'].text.tolist()[:8])
    assert "most often 'banking'" in caplog.text

def test_from_names(rows, tmp_path):
    names = ['banking', 'travel', 'kitchen_and_dining', 'work']
    clf = from_hf(from_names(names).save(tmp_path/'names'))
    right = (pd.DataFrame(clf(rows.text.tolist())).label==rows.label.values).mean()
    assert clf.labels==names and right>.55
    clf.add_class('sport', ['who won the match', 'when does the game start'])
    assert clf(['who won the game'])[0]['label']=='sport'
    assert from_names([f'class {i}' for i in range(500)]).task.n_out==500

@pytest.mark.parametrize('names,says', [(['a','a'], 'twice'), (['a',''], 'blank'), ({'a':'  ', 'b':'b'}, 'blank'), (['a'], 'two classes')])
def test_names_that_cannot_be(names, says):
    with pytest.raises(ValueError, match=says): from_names(names)

def test_names_are_rows_where_they_are_words(rows, caplog):
    few = pd.concat([o[:4] for _,o in rows.groupby('label')]).reset_index(drop=True)
    few['is_valid'] = few.index%4==3
    def learner(df): return classifier_learner(classifier_dls(df, 'minilm', bs=16), 'minilm', precision='fp32')
    learn = learner(few)
    names,why = choose_names(learn, 'probe')
    assert names['kitchen_and_dining']=='kitchen and dining' and 'kappa' in why
    codes = few.assign(label=few.label.map({k:f'x{i}' for i,k in enumerate(sorted(few.label.unique()))}))
    assert choose_names(learner(codes), 'probe')[0] is None
    assert choose_names(learner(codes), 'probe', {'x0':'money in a bank'})[0]['x0']=='money in a bank'
    assert choose_names(learn, 'random')[0] is None and choose_names(learn, 'probe', [])==(None, 'as asked')
    many = pd.concat([o[:20] for _,o in rows.groupby('label')]).assign(is_valid=lambda o: np.arange(len(o))%4==0)
    assert choose_names(learner(many), 'probe')==(None, 'each class has ten rows')

def test_names_of_test_rows_are_no_training_rows(rows, caplog):
    caplog.set_level('INFO')
    few = pd.concat([o[:10] for _,o in rows.groupby('label')]).reset_index(drop=True)
    test = pd.DataFrame(dict(text=['bake a cake', 'a visa'], label=['cooking','travel']))
    stage = fine_tune_classifier(few, 'minilm', test=test, epochs=0)
    assert 'cooking' in stage.learner.model.task.labels and 'names of classes that have few: cooking' not in caplog.text

def test_both_doors_read_names(rows, caplog):
    caplog.set_level('INFO')
    few = pd.concat([o[:6] for _,o in rows.groupby('label')]).reset_index(drop=True)
    few['is_valid'] = few.index%3==2
    how = dict(epochs=1, seed=3)
    stage = fine_tune_classifier(few, 'minilm', **how)
    learn = classifier_learner(classifier_dls(few, 'minilm'), 'minilm')
    learn.fit_plan(learn.plan(**how))
    assert len(stage.plan['names'])==4 and len(learn.dls.train_ds)==len(few[~few.is_valid])+4
    assert caplog.text.count('4 more training rows are names of classes that have few')==2
    a,b = (o.get_preds()[0] for o in (stage.learner, learn))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    first = classifier_learner(classifier_dls(few, 'minilm', bs=16), 'minilm', precision='fp32')
    plain = classifier_learner(classifier_dls(few, 'minilm', bs=16), 'minilm', precision='fp32').fit_probe()
    with first.no_logging(): first.fit(1, 0.)
    assert not torch.equal(first.model.head.layers[-1].weight, plain.model.head.layers[-1].weight) # the probe of the first fit has them too

def test_a_class_without_a_row(tmp_path):
    names = ['book_flight','current_location','flip_coin','recipe','tire_pressure']
    rows = intents(None).query('intent in @names')[['text','intent']]
    df = rows.query("intent!='tire_pressure'").groupby('intent').head(12)
    fine_tune_classifier(df, 'minilm', tmp_path/'clf', label_col='intent', names=names, epochs=0)
    clf = from_hf(tmp_path/'clf')
    assert clf.labels==names
    found = pd.DataFrame(clf(rows.query("intent=='tire_pressure'").text.tolist()[:50])).label
    assert (found=='tire_pressure').mean()>.3 # nothing but its name
    with pytest.raises(ValueError, match='one class a text'): fine_tune_classifier(df.assign(intent=1.5*np.arange(len(df))), 'minilm', label_col='intent', names=['a'])

def test_training_on_with_more_classes_keeps_what_is_known(probe, rows):
    more = rows[rows.label=='work'][:60].assign(is_valid=lambda o: np.arange(len(o))%4==0)
    few = pd.concat([more, rows[rows.label=='travel'][:8].assign(is_valid=False)])
    learn = classifier_learner(classifier_dls(few, str(probe), task=SingleLabel(['banking','kitchen_and_dining','travel','work']), bs=16), str(probe),
                               pool='mean', precision='fp32').fit_probe()
    found = pd.DataFrame(as_predictor(learn)(rows.text.tolist())).label
    right = (found==rows.label.values).groupby(rows.label.values).mean()
    assert right.min()>.6 and right[['banking','kitchen_and_dining']].min()>.85 # of which there was no row

def test_classes_that_a_directory_knows_and_new_rows_lack_are_named(probe, rows, caplog):
    few = rows[rows.label.isin(['banking','work'])].groupby('label').head(10)
    with caplog.at_level(logging.WARNING, 'fastformers'): classifier_learner(classifier_dls(few, str(probe)), str(probe), pool='mean')
    assert 'knows kitchen_and_dining, travel too, and the new classifier will not' in caplog.text

def test_the_commands(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows.to_csv('test.csv', index=False)
    rows[rows.label=='work'][:30][['text']].to_csv('work.csv', index=False)
    def run(*args):
        code = main([*args])
        return code, capsys.readouterr()
    code,said = run('classify', '--labels', 'banking,travel,kitchen_and_dining,work', '--test', 'test.csv', '--output', 'names')
    assert code==0 and '95 % interval' in said.out and 'Next: fastformers predict names' in said.out
    assert run('classify', '--labels', 'a,b', '--output', 'names')[0]==2 and run('classify', '--output', 'other')[0]==2
    code,said = run('remove-class', 'names', 'work')
    assert code==0 and said.out.strip().endswith('names: banking, travel, kitchen_and_dining')
    assert run('add-class', 'names', 'job', 'work.csv')[0]==run('rename-class', 'names', 'job', 'work')[0]==run('merge-classes', 'names', 'home', 'work', 'kitchen_and_dining')[0]==0
    assert from_hf('names').labels==['banking','travel','home']
    assert run('add-class', 'nothing', 'x', 'work.csv')[0]==2 and run('add-class', 'names', 'x', 'wrk.csv')[0]==2
    code,said = run('predict', 'names', 'a visa for japan', '--unknown', '.05')
    assert code==2 and '19 or more texts' in said.err # nothing was held out

def test_a_graph_has_novelty_too(probe, tmp_path):
    pytest.importorskip('onnxruntime')
    from fastformers.inference.onnx import to_onnx
    path = shutil.copytree(probe, tmp_path/'clf')
    to_onnx(path)
    graph,plain = from_hf(path, backend='onnx'),from_hf(path)
    texts = ['a visa for japan', 'the square root of two']
    np.testing.assert_allclose(graph.novelty(texts), plain.novelty(texts), atol=.02)
    assert [o['label'] for o in graph(texts, unknown=.1)]==[o['label'] for o in plain(texts, unknown=.1)]
    for f in (lambda: graph.add_class('x', ['a']), lambda: graph.rename_class(graph.labels[0], 'x')):
        with pytest.raises(ValueError, match='graph'): f()
