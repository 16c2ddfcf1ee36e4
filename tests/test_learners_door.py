"A learner made by hand: its first fit begins from the probe by whichever verb it is called, and `fit_plan` trains as a stage does"
import json
import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, ColReader, ColSplitter, DataBlock, CategoryBlock, L, RandomSplitter, load_learner, nn, params
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.torch_core import set_seed
from transformers import AutoModel
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import HFTextBlock, classifier_dls, tokenizer_of
from fastformers.learner.choose import Plan, choose_names
from fastformers.learner.core import classifier_learner
from fastformers.learner.evaluate import class_scores, evaluate
from fastformers.inference.output_layer import output_layer
from fastformers.learner.probe import ProbeFirst
from fastformers.text.corpora import intents
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_spans, tiny_tags, tiny_tok
from fastformers.ulmfit.stage import fine_tune_classifier

pytestmark = pytest.mark.exact
df = tiny_df()

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    "A tiny checkpoint"
    d = tmp_path_factory.mktemp('arch')/'tiny'
    set_seed(1)
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(d)
    tiny_tok('bert').save_pretrained(d)
    return str(d)

def learner(arch, df=df, dls=None, text_col='text', label_col='label', pairing='together', **kwargs):
    set_seed(3)
    if dls is None: dls = classifier_dls(df, arch, text_col=text_col, label_col=label_col, pairing=pairing, bs=8, device='cpu')
    return classifier_learner(dls, arch, **dict(precision='fp32')|kwargs)

def weights(learn): return output_layer(learn.model).weight.detach().cpu().clone()
def same(a, b): return torch.equal(weights(a) if hasattr(a, 'model') else a, weights(b) if hasattr(b, 'model') else b)

def frozen_fit(learn):
    learn.freeze()
    learn.fit(1, 0.)

def frozen_to_fit(learn):
    learn.freeze_to(-2)
    learn.fit_one_cycle(1, 0.)

def found_fit(learn):
    learn.lr_find(num_it=5, show_plot=False)
    learn.fit(1, 0.)

def summed_fit(learn):
    learn.summary()
    learn.fit(1, 0.)

def half_fit(learn): learn.to_bf16().fit(1, 0.)

verbs = dict(
    fit = lambda o: o.fit(1, 0.),
    fit_one_cycle = lambda o: o.fit_one_cycle(1, 0.),
    fine_tune = lambda o: o.fine_tune(1, 0.),
    fit_flat_cos = lambda o: o.fit_flat_cos(1, 0.),
    fit_sgdr = lambda o: o.fit_sgdr(1, 1, 0.),
    fit_schedule = lambda o: o.fit_schedule(gradual_unfreeze, 1e-30, epochs=1),
    lr_find = found_fit, freeze = frozen_fit, freeze_to = frozen_to_fit, summary = summed_fit,
    early_stopping = lambda o: o.fit(2, 0., cbs=EarlyStoppingCallback(patience=1)),
    mixed_precision = half_fit)

@pytest.mark.parametrize('verb', verbs)
def test_the_first_fit_begins_from_the_probe(arch, verb, tmp_path):
    learn,other = learner(arch, path=tmp_path),learner(arch).fit_probe()
    before = weights(learn)
    verbs[verb](learn)
    assert torch.allclose(weights(learn), weights(other), atol=1e-6) and not same(learn, before)
    assert not learn.cbs.filter(lambda o: isinstance(o, ProbeFirst)) and len(learn.lineage.history)>=1

def test_the_best_epoch_is_saved_with_the_probe(arch, tmp_path):
    learn = learner(arch, path=tmp_path)
    learn.fit(2, 0., cbs=SaveModelCallback(monitor='valid_loss', at_end=False))
    assert same(learn, learner(arch).fit_probe())

def test_a_data_block_gives_a_learner_that_begins_from_the_probe(arch):
    block = DataBlock((HFTextBlock(arch), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
    make = lambda: learner(arch, dls=block.dataloaders(df, bs=8, device='cpu'))
    learn = make()
    learn.fit(1, 0.)
    assert same(learn, make().fit_probe())

class Stop(Callback):
    "Interrupt a training at batch 4"
    order = 2000
    def after_batch(self):
        if self.training and self.train_iter==4: raise KeyboardInterrupt

@pytest.mark.parametrize('verb', ['fit_one_cycle','fine_tune'])
def test_a_killed_fit_ends_as_one_that_was_not(arch, tmp_path, verb):
    def run(at, cbs):
        learn = learner(arch, cbs=[Resume(tmp_path/at, every=3), *cbs])
        getattr(learn, verb)(2, 1e-3)
        return learn.model.state_dict()
    whole = run('whole', [])
    with pytest.raises(KeyboardInterrupt): run('killed', [Stop()])
    again = run('killed', [])
    assert all(torch.equal(v, again[k]) for k,v in whole.items())

def test_weights_that_were_loaded_stay(arch, tmp_path):
    learn = learner(arch, path=tmp_path)
    learn.fit(1, 1e-3)
    trained = weights(learn)
    learn.save('trained')
    other = learner(arch, path=tmp_path).load('trained')
    other.fit(1, 0.)
    assert same(other, trained)
    learn.export('export.pkl')
    back = load_learner(tmp_path/'export.pkl')
    back.dls = learn.dls
    back.fit(1, 0.)
    assert same(back, trained)

need_rows = dict(
    verdict=lambda o: o.verdict(), plan=lambda o: o.plan(), fit_plan=lambda o: o.fit_plan(), lr_find=lambda o: o.lr_find(num_it=5, show_plot=False), fit_probe=lambda o: o.fit_probe(),
    cross_validate_probe=lambda o: o.cross_validate_probe(), fit=lambda o: o.fit(1, 0.), fine_tune=lambda o: o.fine_tune(1, 0.), fit_schedule=lambda o: o.fit_schedule(gradual_unfreeze, 1e-3, 1),
    evaluate=evaluate, class_scores=class_scores)

@pytest.mark.parametrize('trained', [True,False])
def test_a_learner_from_a_pickle_asks_for_rows_and_takes_them(arch, trained, tmp_path, caplog):
    learn = learner(arch, path=tmp_path)
    if trained: learn.fit(1, 1e-3)
    learn.export('export.pkl')
    for name,verb in need_rows.items():
        back = load_learner(tmp_path/'export.pkl')
        with pytest.raises(ValueError, match=r'learn.dls = classifier_dls\(df, tokenizer_of\(learn.dls\), task=learn.model.task'): verb(back)
        back.dls = classifier_dls(df[df.label!='neutral'], tokenizer_of(back.dls), bs=8, device='cpu')
        with pytest.raises(ValueError, match="rows are negative, positive, those of the network negative, neutral, positive; .*task=learn.model.task"): verb(back)
        back.dls = classifier_dls(df, tokenizer_of(back.dls), task=back.model.task, bs=8, device='cpu')
        if name!='fit_plan': verb(back)
    assert 'no frozen probe is compared' in caplog.text
    with pytest.raises(ValueError, match='make one by `classifier_learner`'): back.fit_plan()
    back = load_learner(tmp_path/'export.pkl')
    with pytest.raises(ValueError, match='a pickle holds none'): back.refit()
    dl = back.dls.test_dl(df, with_labels=True)
    assert back.calibrate(dl) and back.fit_probe(dl) is back

def test_a_head_of_a_directory_is_kept(arch, tmp_path):
    learn = learner(arch)
    learn.fit(1, 1e-3)
    learn.save_encoder(tmp_path/'stage')
    again = learner(str(tmp_path/'stage'), dls=learn.dls)
    assert same(again, learn)
    again.fit(1, 0.)
    assert same(again, learn)

class Own(nn.Module):
    "A head of one's own"
    def __init__(self, nf, n_out):
        super().__init__()
        self.out = nn.Linear(nf, n_out)
    def forward(self, h, mask, *args, **kwargs): return self.out(h[:,0])

spans = dict(df=tiny_spans(), text_col=['question','context'], label_col=['answer_text','answer_start'])
without = dict(random=dict(head_init='random'), own=dict(head=Own), hf=dict(head='hf'), weights=dict(pretrained=False),
               tags=dict(df=tiny_tags()), spans=spans)

@pytest.mark.parametrize('how', [dict(), dict(hidden_states='mix'), dict(hidden_states=-2), dict(pool='mean')], ids=str)
def test_the_first_fit_begins_as_the_plan_says(arch, how, tmp_path):
    "A directory with ULMFiT's head gave its form to a new head, whose random layers a probe then read"
    path = str(learner(arch, head_init='random').save_encoder(tmp_path/'o'))
    for o in (learner(arch, **how), learner(path, **how)):
        assert any(isinstance(cb, ProbeFirst) for cb in o.cbs)==(o.plan()['head_init']!='random')

@pytest.mark.parametrize('name', without)
def test_other_learners_begin_as_they_were_made(arch, name):
    learn = learner(arch, **without[name])
    before = weights(learn)
    learn.fit(1, 0.)
    assert same(learn, before)

long = df.assign(text=[' '.join([o]*20) for o in df.text])
several = df.assign(label=df.label.map(lambda o: [o, o[:3]]))
numbers = df.assign(label=df.text.map(len)/10)
pair = dict(df=tiny_pairs(), text_col=['text_a','text_b'])
data = dict(single=dict(df=df), several=dict(df=several), numbers=dict(df=numbers), long=dict(df=long), tags=dict(df=tiny_tags()), pairs=pair)

@pytest.mark.parametrize('how', [{}, dict(calibrate=True)], ids=['plain','calibrate'])
@pytest.mark.parametrize('name', data)
def test_a_plan_trains_as_a_stage_does(arch, name, how):
    if how and name!='single': pytest.skip('one kind of data is enough')
    o = data[name]
    stage = fine_tune_classifier(o['df'], arch, text_col=o.get('text_col', 'text'), epochs=2, bs=8, precision='fp32', **how)
    pool = dict(pool='mean') if name=='pairs' else {} # the choice of a stage that reads the two texts apart
    learn = learner(arch, pairing=stage.plan['pairing'], **o, **pool)
    plan = learn.plan(epochs=2, bs=8, **how)
    back = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert json.dumps(back.to_dict())==json.dumps(plan.to_dict())
    learn.fit_plan(back)
    a,b = (l.get_preds()[0] for l in (stage.learner, learn))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    assert learn.model.task.temperature==stage.learner.model.task.temperature
    if name=='single' and not how: assert plan['contrastive']
    table = learn.verdict()
    assert 'this learner' in table.index and table.notna().loc['this learner'].all()
    if name=='single': learn.calibrate(); learn.tune_thresholds({(df.label[0],df.label.iloc[-1]):3})
    if name=='several': learn.tune_thresholds()
    again = learn.refit()
    for k in ('temperature','threshold','costs'): assert getattr(again.model.task, k)==getattr(learn.model.task, k), k
    if name in ('single','several'): assert again.model.task.costs or again.model.task.threshold
    assert len(again.dls.train_ds)==len(o['df'])-1 and torch.isfinite(again.get_preds()[0]).all()

@pytest.mark.parametrize('call,words', [
    (lambda o: o.fit_plan(3), r"`learn.plan\(epochs=3\)`, got 3"), (lambda o: o.fit_plan(epoch=3), 'did you mean epochs'),
    (lambda o: o.plan(epoch=3), 'did you mean epochs'), (lambda o: o.plan().replace(epoch=3), 'did you mean epochs'),
    (lambda o: o.plan(epochs='many'), '`epochs`: expected a number'), (lambda o: o.plan(head_init='probes'), '`head_init`: expected probe or')])
def test_mistakes_in_a_plan_are_named(arch, call, words):
    with pytest.raises((TypeError,ValueError), match=words): call(learner(arch))

def test_a_plan_takes_its_settings_where_it_is_trained(arch):
    a,b,c = (learner(arch) for _ in range(3))
    a.fit_plan(a.plan(epochs=1, lr=1e-3))
    b.fit_plan(epochs=1, lr=1e-3)
    c.fit_plan(c.plan(epochs=5), epochs=1, lr=1e-3)
    assert same(a, b) and same(a, c)

def test_a_misspelt_beginning_is_no_random_head(arch):
    with pytest.raises(ValueError, match='`head_init`: expected probe or random'): learner(arch, head_init='probes')

@pytest.mark.parametrize('number', [np.float64, np.float32, torch.tensor], ids=['float64','float32','tensor'])
def test_a_rate_may_be_a_number_of_numpy_or_torch(arch, number):
    a,b = learner(arch),learner(arch)
    for o,lr in ((a, 2**-10), (b, number(2**-10))):
        set_seed(1)
        o.fit_one_cycle(1, lr)
        o.fit(1, lr)
    assert same(a, b)

def test_a_network_without_a_name_cannot_be_made_once_more(caplog):
    dls = classifier_dls(tiny_df(), tiny_tok('bert'), bs=16, device='cpu')
    learn = classifier_learner(dls, AutoModel.from_config(tiny_arch('bert')), precision='fp32')
    with pytest.raises(ValueError, match='its network has no name: it cannot be made anew; make one by'): learn.fit_plan()
    assert 'frozen probe' not in learn.verdict().index and 'no frozen probe is compared' in caplog.text

def test_a_splitter_of_fastai_works_and_one_that_forgets_weights_says_so():
    dls = classifier_dls(tiny_df(), tiny_tok('bert'), bs=8)
    learn = classifier_learner(dls, tiny_arch('bert'), splitter=lambda m: L(m[0], m[1]).map(params))
    learn.freeze()
    assert learn.opt.frozen_idx==1 and len(learn.opt.param_lists)==2
    with pytest.raises(ValueError, match='`splitter` leaves out .* the first is hf.embeddings'):
        classifier_learner(dls, tiny_arch('bert'), splitter=lambda m: [params(m.head)])

def test_a_block_with_copies_in_both_parts_is_told(caplog):
    df = pd.concat([tiny_df(), tiny_df().head(30)], ignore_index=True)
    df.loc[df.index[df.label=='positive'][:2],'label'] = 'Positive'
    block = DataBlock(blocks=(HFTextBlock(tiny_tok('bert')), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=RandomSplitter(.3, seed=1))
    with caplog.at_level('WARNING', 'fastformers'): classifier_learner(block.dataloaders(df, bs=8), tiny_arch('bert'))
    assert 'validation texts are also in training' in caplog.text and 'Positive' in caplog.text

def test_a_class_that_looks_like_a_larger_one_gets_no_row_of_its_name():
    df = intents(150)
    few = df.groupby('label').head(5) # names are rows of such classes
    df = pd.concat([few, few[few.label=='travel'].head(2).assign(label='Travel')], ignore_index=True)
    learn = classifier_learner(classifier_dls(df, 'minilm', valid_pct=.1), 'minilm')
    names,_ = choose_names(learn, 'probe')
    assert 'travel' in names and 'Travel' not in names
