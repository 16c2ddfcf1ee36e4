"What a classifier stage does beside the usual is what the parts of the library do, is refused in time, and is another run when it is another value"
import shutil
from functools import partial
import pandas as pd, pytest, torch
from fastai.basics import Callback
from fastai.torch_core import set_seed
from fastformers.models.adapters import add_adapters, bitfit, train_only
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.inference.predictor import from_hf
from fastformers.ulmfit.stage import fine_tune_classifier
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import full_tune
from fastformers.inference.stage_json import read_stage
from fastformers.callback.compute import cpu_bf16
from test_contracts_common import *

df = tiny_df().iloc[:36]
quick = dict(bs=8, epochs=1.5, lr=3e-3, max_len=24)
all3 = dict(layers='mix', adapters='bitfit', aux_lm=.5)

@pytest.fixture(scope='module')
def start(tmp_path_factory):
    "The directory of a language model"
    path = tmp_path_factory.mktemp('start')/'lm'
    torch.manual_seed(0)
    lm_learner(lm_dls(df, tiny_tok('bert'), seq_len=32, bs=8), tiny_arch('bert')).save_encoder(path)
    return path

def state(stage): return {k:v for k,v in stage.learner.model.state_dict().items() if not k.startswith('lm.')}
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

def by_hand(start, f=None, layers=-1, aux=None):
    "The weights of a stage, made with the verbs of a learner"
    set_seed(42)
    dls = classifier_dls(df, start, bs=8, max_len=24)
    learn = quiet(classifier_learner(dls, start, layers=layers, cbs=[cpu_bf16(), *([] if aux is None else [AuxiliaryLM(aux)])]))
    if f is not None: f(learn.model)
    learn.fit_schedule(full_tune, 3e-3, epochs=1.5, discr=1.11)
    return {k:v for k,v in learn.model.state_dict().items() if not k.startswith('lm.')}

@pytest.mark.parametrize('given,parts', [({}, {}), (dict(layers='-2, -1'), dict(layers=[-2,-1])), (dict(adapters='bottleneck'), dict(f=add_adapters)),
    (dict(adapters=partial(add_adapters, width=4)), dict(f=lambda m: add_adapters(m, width=4))), (dict(aux_lm=.3), dict(aux=.3)), (all3, dict(layers='mix', f=bitfit, aux=.5))])
def test_an_argument_does_what_its_parts_do(start, given, parts):
    got = state(fine_tune_classifier(df, start, **given, **quick))
    assert same(got, by_hand(start, **parts))
    if given: assert not same(got, state(fine_tune_classifier(df, start, **quick))) # it does something

def test_frozen_weights_stay_within_a_budget_of_time_too(start, monkeypatch):
    monkeypatch.setattr('fastformers.ulmfit.stage.epochs_for', lambda learn, minutes: learn.fit(1, 1e-2) or 1.)
    stage = fine_tune_classifier(df, start, adapters='bottleneck', aux_lm=.5, minutes=1, bs=8, epochs=None, max_len=24)
    body,old = stage.learner.model.body,lm_body(start)
    frozen = [n for n in old if n not in body.trained_names]
    assert len(frozen)>20 and all(torch.equal(body.get_parameter(n), old[n]) for n in frozen)
    assert any(not torch.equal(body.get_parameter(n), old[n]) for n in old if n in body.trained_names)

def lm_body(start):
    from fastformers.models.core import load_body
    return dict(load_body(start)[0].named_parameters())

def test_the_directory_of_all_three_opens_and_says_what_was_asked_for(start, tmp_path):
    stage = fine_tune_classifier(df, start, tmp_path/'c', test=df[:6], **all3, **quick)
    facts = read_stage(tmp_path/'c')
    assert {k:facts['recipe'][k] for k in all3}==all3 and 'settings' not in facts and stage.to_dict()['settings']==all3
    assert [stage.table()[k].item() for k in all3]==['mix','bitfit','0.5']
    want = stage.learner.get_preds(dl=stage.learner.dls.test_dl(df.text.tolist()))[0].max(1).values
    assert [o['score'] for o in from_hf(tmp_path/'c', device='cpu')(df.text.tolist())]==pytest.approx(want.tolist(), abs=1e-2) # bfloat16 where it pays
    again = fine_tune_classifier(df, tmp_path/'c', adapters='bitfit', **quick)      # what bitfit left is a plain network
    assert again.settings==dict(adapters='bitfit') and 'classifier' in again.parent

def test_a_directory_with_bottlenecks_goes_on_and_takes_no_second_ones(start, tmp_path):
    first = fine_tune_classifier(df, start, tmp_path/'c', **{**all3, 'adapters':'bottleneck'}, **quick)
    want = first.learner.get_preds(dl=first.learner.dls.test_dl(df.text.tolist()))[0].max(1).values
    assert [o['score'] for o in from_hf(tmp_path/'c', device='cpu')(df.text.tolist())]==pytest.approx(want.tolist(), abs=1e-2)
    with pytest.raises(ValueError, match='brings adapters along'): fine_tune_classifier(df, tmp_path/'c', adapters='bitfit', **quick)
    again = fine_tune_classifier(df, tmp_path/'c', layers='mix', **quick)
    assert again.learner.model.adapters['method']=='bottleneck' and again.settings==dict(layers='mix')

def test_a_usual_stage_has_no_more_columns(start):
    stage = fine_tune_classifier(df, start, layers=[-1], **quick)
    assert stage.settings=={} and not {*all3} & {*stage.table()}

def test_the_family_decides_which_language_model(tmp_path):
    gpt = lm_learner(lm_dls(df, tiny_tok('gpt2'), seq_len=32, bs=8), tiny_arch('gpt2')).save_encoder(tmp_path/'gpt2')
    assert isinstance(fine_tune_classifier(df, gpt, aux_lm=.5, **quick).learner.auxiliary_lm.objective, CLM)
    assert isinstance(fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok('bert'), aux_lm=.5, **quick).learner.auxiliary_lm.objective, MLM)

def test_odd_texts_are_no_other_matter(start):
    odd = pd.DataFrame(dict(text=['', '🎬'*300, 'x'*100_000, '[SEP] [MASK]', '\n', 'fine']*4, label=list('abab')*6, is_valid=[False]*16+[True]*8))
    stage = fine_tune_classifier(odd, start, **all3, **quick)
    assert stage.metrics['loss']<10 and stage.learner.auxiliary_lm.penalty.isfinite()

# ---- refused in time

class Never:
    "Data that nobody may look at"
    def __getattr__(self, k): raise AssertionError(f'the data were asked for {k}')

@pytest.mark.parametrize('given,exc,says', [
    (dict(adapters='loar'), ValueError, "'loar' is unknown; available: bottleneck, lora, bitfit"), (dict(adapters=5), TypeError, 'got 5; available: bottleneck'),
    (dict(aux_lm=-1), ValueError, 'more than 0 and finite.*got -1'), (dict(aux_lm=0), ValueError, 'got 0'), (dict(aux_lm=float('nan')), ValueError, 'got nan'),
    (dict(layers='all'), ValueError, "'mix' for a learned mean of all; got 'all'"), (dict(layers=1.5), ValueError, 'got 1.5'),
    (dict(layers='mix', head='hf'), ValueError, "fed by the last layer, got layers='mix'"), (dict(layers=[0,1], head='hf'), ValueError, 'fed by the last layer'), (dict(head='hg'), ValueError, "got 'hg'"),
    (dict(aux_lm=.5, arch='xlnet'), ValueError, 'xlnet has no masked LM.*leave `aux_lm` out'), (dict(aux_lm=.5, arch='t5'), ValueError, 't5 has no masked LM')])
def test_what_cannot_work_is_refused_before_the_data_are_looked_at(start, tmp_path, given, exc, says):
    arch = tiny_arch(given['arch']) if 'arch' in given else start
    with pytest.raises(exc, match=says): fine_tune_classifier(Never(), path=tmp_path/'c', resume=tmp_path/'ckpt', **{**given, 'arch':arch})
    assert not [*tmp_path.iterdir()]

def test_a_network_is_not_adapted_twice(start, monkeypatch):
    from fastformers.learner import core as learner
    load = learner.load_body
    monkeypatch.setattr(learner, 'load_body', lambda *args, **kwargs: add_adapters(load(*args, **kwargs)))
    with pytest.raises(ValueError, match='lm went through `add_adapters` before, and `adapters` = bitfit would be the second; leave `adapters` out'): fine_tune_classifier(df, start, adapters='bitfit', **quick)
    assert fine_tune_classifier(df, start, **quick).learner.model.adapters['method']=='bottleneck'

def test_a_directory_with_adapters_is_refused_before_the_data_are_looked_at(start, tmp_path):
    shutil.copytree(start, tmp_path/'c'); (tmp_path/'c'/'adapters.safetensors').touch()
    with pytest.raises(ValueError, match=r"c brings adapters along \(adapters.safetensors\), and `adapters` = bottleneck would be the second; leave `adapters` out"): fine_tune_classifier(Never(), tmp_path/'c', adapters='bottleneck')

def test_one_auxiliary_language_model_is_enough(start):
    with pytest.raises(ValueError, match='one of them'): fine_tune_classifier(df, start, aux_lm=.5, cbs=AuxiliaryLM(), **quick)

# ---- stopped and continued

class Accident(Callback):
    order,outside = 2000,True
    def after_batch(self):
        if self.training and self.train_iter==3: raise KeyboardInterrupt

def stopped(start, path, **given):
    with pytest.raises(KeyboardInterrupt): fine_tune_classifier(df, start, resume=Resume(path, every=2), cbs=Accident(), **given, **quick)

@pytest.mark.parametrize('given', [all3, dict(adapters='bottleneck', layers='0, -1')])
def test_a_stopped_stage_goes_on(start, tmp_path, given):
    whole = fine_tune_classifier(df, start, **given, **quick)
    stopped(start, tmp_path/'ckpt', **given)
    on = fine_tune_classifier(df, start, resume=tmp_path/'ckpt', **given, **quick)
    assert same(state(on), state(whole)) and on.losses==whole.losses

def head_and(name): return lambda m: train_only(m, lambda n,p: name in n)

@pytest.mark.parametrize('old,new,says', [
    (all3, {**all3, 'aux_lm':.25}, 'aux_lm was 0.5, is 0.25'), (all3, {**all3, 'aux_lm':None}, 'aux_lm was 0.5, is none'), (all3, {**all3, 'layers':-1}, 'layers was mix, is none'),
    (dict(layers=1), dict(layers=2), 'layers was 1, is 2'), (dict(adapters='bitfit'), {}, 'adapters was bitfit, is none'), ({}, dict(adapters='bitfit'), 'adapters was none, is bitfit'),
    (dict(adapters=partial(add_adapters, width=4)), dict(adapters=partial(add_adapters, width=8)), 'width=4.*width=8'),
    (dict(adapters=head_and('query')), dict(adapters=head_and('key')), 'model was')]) # the last: functions without a name
def test_another_value_is_another_run(start, tmp_path, old, new, says):
    stopped(start, tmp_path/'ckpt', **old)
    with pytest.raises(ValueError, match=f'another run: .*{says}'): fine_tune_classifier(df, start, resume=tmp_path/'ckpt', **new, **quick)
