"Temperature and thresholds leave fastai with the classifier, and come back with it"
import json
import pytest, torch
from fastai.data.all import ColReader, ColSplitter, DataBlock, MultiCategoryBlock
from fastai.learner import load_learner
from fastai.losses import BCEWithLogitsLossFlat
from sklearn.metrics import f1_score
from fastformers.data.block import HFTextBlock
from fastformers.inference.bundle import read_bundle
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.tasks.core import task_of
from fastformers.interpret.decisions import expected_calibration_error, plot_reliability
from fastformers.learner import calibration # `calibrate`, `tune_thresholds`
from fastformers.learner.core import classifier_learner
from fastformers.learner.evaluate import class_scores, evaluate
from fastformers.testing import tiny_tags
from test_contracts_common import *

df = tiny_df()
several = df.assign(label=df.label+df.text.str.len().map(lambda n: ';long' if n>60 else ''))
two = df[df.label!='neutral']

def learner(o=df, family='bert', **kwargs):
    torch.manual_seed(0)
    learn = quiet(classifier_learner(classifier_dls(o, tiny_tok(family), bs=16, max_len=40, device='cpu'), tiny_arch(family), **kwargs))
    loud(learn.model, by=4.)
    return learn

def asked(learn): return learn.get_preds(dl=learn.dls.test_dl(texts))[0]

@pytest.mark.exact
@pytest.mark.parametrize('family,head', [('bert',None), ('bert','hf'), ('gpt2','hf'), ('xlnet',None)])
@pytest.mark.parametrize('o', [df, several], ids=['single','multi'])
def test_a_temperature_is_that_of_the_scores_everywhere(family, head, o, tmp_path):
    learn = learner(o, family, head=head)
    before,loss = asked(learn),learn.validate()[0]
    t = learn.calibrate()
    after = asked(learn)
    assert t==learn.model.task.temperature!=1 and gap(after, before)>1e-3 and learn.validate()[0]<loss
    assert gap(after.logit().diff(dim=1) if o is several else after.log().diff(dim=1), (before.logit() if o is several else before.log()).diff(dim=1)/t)<1e-3
    path = learn.to_hf(tmp_path/'o')
    assert read_bundle(path).task.temperature==t and gap(from_hf(path, device='cpu').scores(texts), after)<1e-5
    again = classifier_learner(learn.dls, path, head=head)
    assert gap(asked(again), after)<1e-5 and read_bundle(again.save_encoder(tmp_path/'p')).task.temperature==t
    assert ('temperature' in (path/'README.md').read_text())==(head=='hf')     # `pipeline` does not know it
    learn.export(tmp_path/'o.pkl')
    assert gap(asked(load_learner(tmp_path/'o.pkl')), after)<1e-5

def test_two_learners_of_one_set_of_data_have_temperatures_of_their_own():
    one = learner()
    other = classifier_learner(one.dls, tiny_arch('bert'))
    before = asked(other)
    one.calibrate()
    assert one.model.task.temperature and not other.model.task.temperature and gap(asked(other), before)==0

def test_without_a_temperature_nothing_is_written(tmp_path):
    d = json.loads((learner().to_hf(tmp_path/'o')/'classifier.json').read_text())
    assert not {'temperature','threshold'} & {*d, *d['task']}

@pytest.mark.parametrize('loss', [None, BCEWithLogitsLossFlat(pos_weight=torch.tensor([1.,2.,3.,4.])), torch.nn.BCEWithLogitsLoss()], ids=['default','fastai','torch'])
def test_thresholds_decide_everywhere(loss, tmp_path):
    learn = learner(several, loss_func=loss)
    value,plain = learn.validate()[0],learn.get_preds(with_loss=True)[2]
    chosen = learn.tune_thresholds()
    p,y,found,rows = learn.get_preds(with_decoded=True, with_loss=True)
    assert torch.equal(found, p>torch.tensor(chosen.to_list())) and not torch.equal(found, p>.5)
    assert gap(rows, plain)<1e-6 and learn.validate()[0]==pytest.approx(value)  # the loss does not know thresholds
    metrics,score,_ = evaluate(learn)
    right = (found==(y>.5)).float().mean()
    f1 = f1_score(y>.5, found, average='samples', zero_division=1.)
    assert metrics['accuracy_multi']==pytest.approx(float(right)) and metrics['f1_samples']==pytest.approx(f1)
    assert score.mean()==pytest.approx(f1)
    assert class_scores(learn).recall['long']==pytest.approx(float(found[:,0][y[:,0]>.5].float().mean()))
    names = [{str(l) for l,c in zip(learn.dls.vocab, r) if c} for r in asked(learn)>torch.tensor(chosen.to_list())]
    path = learn.to_hf(tmp_path/'o')
    assert [{*o['label']} for o in from_hf(path, device='cpu')(texts)]==names
    assert [{*o['label']} for o in Ensemble([path, path], 'cpu')(texts)]==names
    fresh = classifier_dls(several, tiny_tok(), bs=16, max_len=40, device='cpu')
    again = classifier_learner(fresh, path)
    assert gap(asked(again), asked(learn))<1e-5 and again.model.task.threshold==chosen.to_list()
    assert torch.equal(again.get_preds(with_decoded=True)[2], found)

@pytest.mark.parametrize('cost', [3, (1,), (-1,1), (float('nan'),1), 'high'])
def test_costs_are_two_numbers(cost):
    with pytest.raises(ValueError, match='of a false positive, of a false negative'): learner(several).tune_thresholds(cost)

def test_thresholds_of_a_data_block_are_kept(tmp_path):
    block = DataBlock((HFTextBlock(tiny_tok(), max_len=40), MultiCategoryBlock), get_x=ColReader('text'), get_y=ColReader('label', label_delim=';'), splitter=ColSplitter())
    learn = quiet(classifier_learner(block.dataloaders(several, bs=16, device='cpu'), tiny_arch('bert')))
    loud(learn.model, by=4.)
    chosen = learn.tune_thresholds()
    assert read_bundle(learn.to_hf(tmp_path/'o')).task.threshold==chosen.to_list()!=[.5]*4

@pytest.mark.exact
def test_a_threshold_for_two_classes(tmp_path):
    learn = learner(two)
    for cost,most in (((1,50),'positive'), ((50,1),'negative')):
        learn.tune_thresholds(cost)
        p,y,found = learn.get_preds(with_decoded=True)
        wrong = found[y==(most=='positive')]!=int(most=='positive')
        assert not wrong.any() and learn.validate()[1]==pytest.approx(float((found==y).float().mean()))
        ask = from_hf(learn.to_hf(tmp_path/most), device='cpu')
        assert [o['label'] for o in ask(texts)]==[learn.predict(o)[0] for o in texts]
        assert gap(torch.tensor([o['score'] for o in ask(texts)]), torch.stack([learn.predict(o)[2][ask.labels.index(learn.predict(o)[0])] for o in texts]))<1e-5

def test_low_scores_have_no_label(tmp_path):
    ask = from_hf(learner().to_hf(tmp_path/'o'), device='cpu')
    plain = ask(texts)
    at = sorted(o['score'] for o in plain)[len(texts)//2]
    assert ask(texts, abstain_below=at)==[o if o['score']>=at else {'label':None, 'score':o['score']} for o in plain]
    assert [*ask(iter(texts), abstain_below=at)]==ask(texts, abstain_below=at)
    for o in (several, df.assign(label=df.text.str.len()/10)):
        with pytest.raises(ValueError, match='one class a text'): from_hf(learner(o).to_hf(tmp_path/'p'), device='cpu')(texts, abstain_below=.5)

def test_a_perfectly_calibrated_score_has_no_error():
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(50_000, generator=rng)
    y = (torch.rand(50_000, generator=rng)<p).long()
    scores = torch.stack([1-p, p], 1)
    assert expected_calibration_error(scores, y)<.01 and expected_calibration_error(p[:,None], y[:,None])<.01
    assert expected_calibration_error((scores.log()*3).softmax(1), y)>.05

def test_names_of_classes_are_no_targets():
    with pytest.raises(TypeError, match='class ids'): expected_calibration_error(torch.eye(2), ['no','yes'])

@pytest.mark.parametrize('rows,task', [(tiny_df().assign(label=range(60)), 'regression'), (tiny_tags(), 'tags')])
def test_only_scores_of_classes_are_probabilities(rows, task):
    learn = classifier_learner(classifier_dls(rows, tiny_tok(), task=task), tiny_arch('bert'))
    for f in (expected_calibration_error, plot_reliability):
        with pytest.raises(TypeError, match=f'only classes of a text have scores to calibrate, got {task}'): f(learn)

def test_training_goes_on_without_the_temperature():
    learn = learner()
    x = learn.dls.one_batch()[0]
    learn.model.task.temperature = None
    plain = learn.model.eval()(x)
    learn.model.task.temperature = 4.
    assert torch.allclose(learn.model(x)*4, plain, atol=1e-5)
    for m in learn.model.modules():
        if isinstance(m, torch.nn.Dropout): m.p = 0.
    assert torch.allclose(learn.model.train()(x), plain, atol=1e-4)
