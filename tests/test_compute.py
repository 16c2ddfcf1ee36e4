"Gradient checkpointing and compiled blocks: the same gradients, nothing left behind, and who else has to know"
import io, json, logging, pickle, shutil
from contextlib import nullcontext
import pytest, torch
from test_contracts_common import Power
from fastai.basics import Callback, CancelEpochException, set_seed
from fastformers.callback.gradient_checkpointing import CompileBlocks, GradientCheckpointing, checkpointing, compiled, hf_inside
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.models.families import block_modules, layer_groups
from fastformers.callback.freeze import FrozenCache
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import chain_thaw, gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_families, tiny_tok
from fastformers.callback.lr_find import epochs_for
from fastformers.callback.compute import cpu_bf16
from fastai.callback.fp16 import MixedPrecision

with_it = 'bert roberta distilbert electra modernbert deberta-v2 convbert fnet gpt2 llama opt'.split()
without = 'albert mpnet xlnet squeezebert openai-gpt'.split()
def has_compiler():
    from torch._inductor import config
    return any(o and shutil.which(o) for o in config.cpp.cxx)
needs_compiler = pytest.mark.skipif(not has_compiler(), reason='no C++ compiler')

class Keep(Callback):
    "Keep the gradient of each step"
    order = MixedPrecision.order+2
    def before_fit(self): self.grads = []
    def before_step(self): self.grads.append(torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None]).clone())

df = tiny_df()
small = df.iloc[:16].assign(is_valid=[i%4==3 for i in range(16)])
def lm(family='bert', *cbs, bs=4, seq_len=32, layers=3, **kwargs):
    set_seed(0)
    tok = tiny_tok(family)
    dls = lm_dls(small, tok, (CLM if tok.mask_token is None else MLM)(tok), seq_len=seq_len, bs=bs)
    return lm_learner(dls, tiny_arch(family, num_hidden_layers=layers), cbs=[Keep(), *cbs], **kwargs)
def classifier(family='bert', *cbs, bs=4, layers=3, data=small, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(data, tiny_tok(family), bs=bs, device='cpu'), tiny_arch(family, num_hidden_layers=layers), cbs=[Keep(), *cbs], **kwargs)

def fit(learn, how=lambda o: o.fit(1, 1e-2)):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn
def gap(a, b):
    assert len(a.keep.grads)==len(b.keep.grads)>0 and all(len(x)==len(y) for x,y in zip(a.keep.grads, b.keep.grads))
    return max(float((x-y).abs().max()) for x,y in zip(a.keep.grads, b.keep.grads))
def switched(learn): return [m for m in learn.model.modules() if getattr(m,'gradient_checkpointing',False) or m._compiled_call_impl is not None or vars(m).get('_gradient_checkpointing_func')]
def hooks(learn): return sum(len(m._forward_hooks)+len(m._forward_pre_hooks) for m in learn.model.modules())
def untouched(learn): return not switched(learn) and '_with_events' not in vars(learn)

def kept(learn, where):
    "Bytes that a training step of `learn` keeps for its backward pass"
    own,seen,b = {p.untyped_storage().data_ptr() for p in learn.model.parameters()},{},learn.dls.train.one_batch()
    def pack(t): seen[t.untyped_storage().data_ptr()] = t.untyped_storage(); return t
    learn.model.train()
    learn.model(b[0])
    with where, torch.autograd.graph.saved_tensors_hooks(pack, lambda o: o): loss = learn.loss_func(learn.model(b[0]), *b[1:])
    return sum(o.nbytes() for k,o in seen.items() if k not in own)

# --- gradient checkpointing

@pytest.mark.parametrize('make', [lm, classifier])
@pytest.mark.parametrize('family', with_it)
def test_checkpointing_leaves_gradients(family, make):
    a,b = fit(make(family)),fit(make(family, GradientCheckpointing()))
    assert gap(a, b)==0, 'with dropout, bit by bit'
    assert untouched(b) and hooks(b)==hooks(make(family))
    small,large = make(family),make(family, layers=5)
    state = small.dls.train.one_batch()[0].numel()*32*4                             # one hidden state (bs, sl, nf) in float32
    on,off = (kept(large, where(large.model))-kept(small, where(small.model)) for where in (checkpointing, lambda m: nullcontext()))
    assert on<=2*1.1*state<4*state<off, 'two blocks more keep two states more, and a little that all blocks share'

def test_dropout_is_on():
    "Otherwise the test above says nothing about random states"
    learn = lm(); b = learn.dls.train.one_batch()
    learn.model.train(); assert not torch.equal(learn.model(b[0]), learn.model(b[0]))

@pytest.mark.parametrize('schedule', [gradual_unfreeze, chain_thaw])
@pytest.mark.parametrize('make', [lm, classifier])
def test_checkpointing_with_frozen_groups(schedule, make):
    def how(o): o.fit_schedule(schedule, 1e-2, epochs=3 if schedule is gradual_unfreeze else 5)
    assert gap(fit(make(), how), fit(make('bert', GradientCheckpointing()), how))==0

def test_frozen_blocks_are_not_computed_again():
    learn,calls = lm('bert', GradientCheckpointing(), bs=100),[]
    for i,(m,) in enumerate(block_modules(learn.model.body)): m.intermediate.register_forward_hook(lambda *_, i=i: calls.append(i) if torch.is_grad_enabled() else None)
    learn.freeze_to(3)                                          # blocks 0 and 1 are frozen
    fit(learn)
    assert calls==[0,1,2,2]

def test_checkpointing_with_bf16():
    for make in (lm, classifier): assert gap(fit(make('bert', cpu_bf16(True))), fit(make('bert', cpu_bf16(True), GradientCheckpointing())))==0

@pytest.mark.parametrize('family', without)
def test_families_without_checkpointing_are_refused(family):
    learn = classifier(family, GradientCheckpointing())
    with pytest.raises(ValueError, match=f'no gradient checkpointing for {family}.*TokenAccumulation'): fit(learn)
    assert untouched(learn) and not learn.keep.grads

def test_a_model_of_another_kind_is_refused():
    learn = lm('bert', GradientCheckpointing())
    learn.model,learn.n_epoch,learn.epoch = torch.nn.Linear(2,2),1,0
    learn('before_fit')
    with pytest.raises(TypeError, match='network of the transformers library'): learn._with_events(lambda: None, 'epoch', CancelEpochException)
    assert '_with_events' not in vars(learn)

@pytest.mark.parametrize('family', without)
def test_a_refusal_leaves_nothing_of_the_others_on(family):
    learn = classifier(family, FrozenCache(), GradientCheckpointing())
    forward,inputs = vars(learn.model.body).get('forward'),learn.model.model_inputs
    with pytest.raises(ValueError, match='no gradient checkpointing'): fit(learn)
    assert untouched(learn) and vars(learn.model.body).get('forward') is forward and learn.model.model_inputs is inputs

class Refuse(Callback):
    order = 3000
    def before_fit(self): raise RuntimeError('refused')

def test_a_fit_that_did_not_begin_changed_nothing():
    learn = classifier('bert', FrozenCache(), GradientCheckpointing(), CompileBlocks('aot_eager'), Refuse())
    with pytest.raises(RuntimeError, match='refused'): fit(learn)
    assert not switched(learn) and 'forward' not in vars(learn.model.body)
    learn.remove_cbs([o for o in learn.cbs if isinstance(o, (Refuse,Keep))])
    pickle.dump(learn, io.BytesIO())
    fit(learn)
    assert untouched(learn)

def test_a_refusal_while_a_run_is_continued(tmp_path):
    "`Resume` leaves its callbacks out until the epoch it goes on in"
    def make(*cbs): return classifier('mpnet', Resume(tmp_path, every=2), *cbs)
    class Third(Callback):
        order = 3000
        def after_batch(self):
            if self.train_iter==3: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): fit(make(Third()), lambda o: o.fit(2))
    learn = make(GradientCheckpointing())
    names = sorted(o.name for o in learn.cbs)
    with pytest.raises(ValueError, match='no gradient checkpointing'): fit(learn, lambda o: o.fit(2))
    assert sorted(o.name for o in learn.cbs)==names and untouched(learn)

def test_switched_on_by_somebody_else_stays_on():
    learn = lm('bert', GradientCheckpointing())
    for m in learn.model.modules():
        if hasattr(m,'gradient_checkpointing'): m.gradient_checkpointing,m._gradient_checkpointing_func = True,lambda f,*args: f(*args)
    n = len(switched(learn))
    fit(learn)
    assert len(switched(learn))==n>0

# --- on in a fit, off after it

class Stop(Callback):
    "Raise `why` at `event`"
    order = 3000
    def __init__(self, event, why): self.event,self.why = event,why
    def __call__(self, name):
        if name==self.event: raise self.why('stop')

both = lambda: [GradientCheckpointing(), CompileBlocks('aot_eager')]
@pytest.mark.parametrize('event', ['before_epoch','before_train','before_batch','after_pred','after_step','before_validate','after_epoch'])
@pytest.mark.parametrize('why', [KeyboardInterrupt, MemoryError])
def test_off_after_an_exception(event, why):
    learn = lm('bert', GradientCheckpointing(), CompileBlocks('aot_eager')) if event in ('before_epoch','before_train') else lm('bert', GradientCheckpointing())
    n = hooks(learn)
    with pytest.raises(why): fit(learn, lambda o: o.fit(2, cbs=Stop(event, why)))
    assert untouched(learn) and hooks(learn)==n
    assert gap(fit(lm()), fit(lm('bert', GradientCheckpointing())))==0

def test_off_after_an_error_in_the_network():
    learn = lm('bert', GradientCheckpointing(), CompileBlocks('aot_eager'))
    h = learn.model.body.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError('out of memory')))
    n = hooks(learn)
    with pytest.raises(RuntimeError, match='out of memory'): fit(learn)
    assert untouched(learn) and hooks(learn)==n

def test_on_in_each_epoch_and_at_no_other_time():
    seen = []
    class Look(Callback):
        order = 2001
        def before_fit(self): seen.append(('fit', bool(switched(self.learn))))
        def after_epoch(self): seen.append(('epoch', bool(switched(self.learn))))
        def after_fit(self): seen.append(('end', bool(switched(self.learn))))
    learn = lm('bert', GradientCheckpointing(), Look())
    with learn.no_bar(), learn.no_logging():
        learn.fit(3)
        assert seen==[('fit',False), *[('epoch',True)]*3, ('end',False)] # a callback after these may still refuse to begin
        seen.clear(); learn.validate(); learn.get_preds(); learn.fit(0)
    assert not any(o for _,o in seen) and untouched(learn)

def test_a_learner_is_pickled_as_ever():
    learn = fit(lm('bert', GradientCheckpointing(), CompileBlocks('aot_eager')), lambda o: o.fit(0))
    learn.remove_cb(Keep)
    pickle.dump(learn, io.BytesIO())

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_what_is_saved_in_the_middle_of_a_fit(family, tmp_path):
    class Save(Callback):
        def after_batch(self): self.learn.save_encoder(tmp_path/self.to) if self.training and not (tmp_path/self.to).exists() else None
    a,b = Save(),Save(); a.to,b.to = 'a','b'
    fit(lm(family, drop_mult=0.), lambda o: o.fit(1, cbs=a)); fit(lm(family, *both(), drop_mult=0.), lambda o: o.fit(1, cbs=b)) # compiled blocks draw dropout in their own way
    assert (tmp_path/'a/config.json').read_text()==(tmp_path/'b/config.json').read_text()
    from safetensors.torch import load_file
    a,b = (load_file(tmp_path/o/'model.safetensors') for o in 'ab')
    assert a.keys()==b.keys() and all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)

# --- compiled blocks

@pytest.fixture(autouse=True)
def fresh_dynamo():
    yield
    torch._dynamo.reset()

def counter():
    from torch._dynamo.testing import CompileCounterWithBackend
    return CompileCounterWithBackend('aot_eager')

@pytest.mark.parametrize('family', ['bert','gpt2','albert','modernbert','distilbert'])
def test_compiled_fit_equals_plain(family):
    c = counter()
    a,b = (fit(lm(family, *cbs, layers=2, drop_mult=0.)) for cbs in ([], [CompileBlocks(c)]))
    assert c.frame_count>0 and gap(a, b)<1e-5
    assert torch.allclose(torch.stack(list(a.recorder.losses)), torch.stack(list(b.recorder.losses)), atol=1e-5)
    assert list(a.validate())==pytest.approx(list(b.validate()), abs=1e-2)
    assert a.model.state_dict().keys()==b.model.state_dict().keys() and [*map(len, layer_groups(a.model))]==[*map(len, layer_groups(b.model))] and untouched(b)

@needs_compiler
@pytest.mark.parametrize('make', [lm, classifier])
def test_machine_code_equals_plain(make):
    a,b = (fit(make('bert', *cbs, layers=1, drop_mult=0.)) for cbs in ([], [CompileBlocks()]))
    assert 0<gap(a, b)<1e-5, 'equal up to rounding; equal bit by bit would mean that nothing was compiled'

def graphs(n_epoch, layers, family='bert', data=df, **kwargs):
    c = counter()
    torch._dynamo.reset()
    learn = fit(classifier(family, CompileBlocks(c, **kwargs), layers=layers, data=data, drop_mult=0.), lambda o: o.fit(n_epoch, 1e-3))
    return c.frame_count

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_graphs_do_not_grow(family):
    n = graphs(1, 2, family)
    assert n<=6, '25 batches: in training and in validation those with padding, without, and of a single row'
    assert graphs(2, 2, family)==n, 'with epochs'
    assert graphs(1, 4, family)==n, 'with blocks'

def test_every_shape_has_its_graph_unless_dynamic(): assert graphs(1, 1, data=small, dynamic=False)>graphs(1, 1, data=small)

def test_graphs_of_a_schedule_are_few():
    c = counter()
    how = lambda o: o.fit_schedule(gradual_unfreeze, 1e-2, epochs=5)
    a,b = fit(lm('bert', drop_mult=0.), how),fit(lm('bert', CompileBlocks(c), drop_mult=0.), how)
    assert gap(a, b)<1e-5 and c.frame_count<=7 # one of them for blocks that are frozen: in eval mode in the middle of training

def test_without_a_compiler():
    learn = lm('bert', CompileBlocks())
    with torch._inductor.config.patch('cpp.cxx', (None,'gone++')), pytest.raises(RuntimeError, match=r'no gone\+\+ here; install'): fit(learn)
    assert untouched(learn)

def test_compiled_by_somebody_else_stays():
    learn = lm('bert', CompileBlocks('aot_eager'), layers=2)
    m = block_modules(learn.model.body)[0][0]
    m.compile(backend='eager')
    f = m._compiled_call_impl
    fit(learn)
    assert m._compiled_call_impl is f and switched(learn)==[m]

def test_both_at_once():
    a,b = fit(lm('bert', layers=2, drop_mult=0.)),fit(lm('bert', *both(), layers=2, drop_mult=0.))
    assert gap(a, b)<1e-5

# --- who else has to know

@pytest.mark.parametrize('before,after', [(1,1), (1,0), (0,1)])
def test_resume_goes_on_with_or_without_checkpointing(before, after, tmp_path):
    def run(on, *cbs): return lm('bert', *[GradientCheckpointing()]*on, Resume(tmp_path/'r', every=1), *cbs)
    def how(o): o.fit_one_cycle(3, 1e-2)
    whole = fit(lm(), how)
    with pytest.raises(KeyboardInterrupt): fit(run(before, Power(4)), how)
    learn = fit(run(after), how)
    assert untouched(learn)
    for k,v in whole.model.state_dict().items(): assert torch.equal(v, learn.model.state_dict()[k]), k

def test_time_is_taken_with_them_on():
    learn,seen = lm('bert', *both(), layers=1),[]
    learn.model.body.register_forward_pre_hook(lambda *_: seen.append([type(m).__name__ for m in switched(learn)]))
    epochs_for(learn, 1)
    assert seen and all('BertLayer' in o for o in seen) and untouched(learn)
