"Frozen layers in eval mode, their states kept: the same losses and weights as without, whatever else happens around a step"
import copy, errno, logging, pickle, shutil, subprocess, sys
import pytest, torch
from fastai.basics import Callback, set_seed
from fastai.callback.schedule import lr_find
from fastai.learner import load_learner
from torch import nn
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.gradient_checkpointing import CompileBlocks, GradientCheckpointing
from fastformers.text.core import TensorTokens
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.models.families import block_modules
from fastformers.callback.frozen import FrozenEval, frozen_modules, lowest_open
from fastformers.callback.frozen_cache import FrozenCache, RowStates, find_prefix, keeping, row_keys
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.callback.regularize import L2SP, Mixout, RDrop
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import Schedule, chain_thaw, gradual_unfreeze, lp_ft
from fastformers.testing import tiny_arch, tiny_df, tiny_families, tiny_tok
from fastformers.callback.compute import cpu_bf16
from test_contracts_common import Power

df = tiny_df()
small = df.iloc[:16].assign(is_valid=[i%4==3 for i in range(16)])

def classifier(family='bert', *cbs, bs=5, arch=None, data=small, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(data, tiny_tok(family), bs=bs, device='cpu'), arch or tiny_arch(family), cbs=[Ran(), *cbs], **kwargs)

def twice(n): "Gradual unfreezing, two epochs a step"; return Schedule(gradual_unfreeze(n).factors, [2]*n)
def gradually(o, lr=1e-3): o.fit_schedule(twice, lr)
def head_alone(o): o.freeze(); o.fit(3, 1e-3)

def fit(learn, how=gradually):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn

class Ran(Callback):
    "How many rows the lowest and the highest block read in each epoch, without what is tried before a batch"
    order,on = 3000,False
    def after_create(self):
        for b in (block_modules(self.model.body)[0], block_modules(self.model.body)[-1]):
            next(o for m in b for o in m.modules() if not list(o.children()) and list(o.parameters())).register_forward_hook(self.note)
    def before_fit(self): self.n = []
    def before_epoch(self): self.n.append(0)
    def before_batch(self): self.on = True
    def after_pred(self): self.on = False
    def note(self, m, args, out):
        if self.on and self.n: self.n[-1] += len(out)

def losses(learn): return torch.stack(list(learn.recorder.losses))
def same(a, b, tol=1e-5):
    "Are losses, metrics and weights of two learners equal up to `tol`?"
    assert len(losses(a))==len(losses(b))>0
    assert (losses(a)-losses(b)).abs().max()<tol
    assert torch.tensor(a.recorder.values).sub(torch.tensor(b.recorder.values)).abs().max()<tol
    return all((p-q).abs().max()<tol for p,q in zip(a.model.parameters(), b.model.parameters()))

def untouched(learn): return all('forward' not in vars(m) and not m._forward_hooks_with_kwargs for m in learn.model.modules()) and type(learn.model.inputs).__name__=='ModelInputs'

# --- equal to the run without

in_the_middle = 'bert roberta distilbert electra deberta-v2 modernbert mpnet gpt2 openai-gpt llama fnet albert'.split()
whole_only = 't5 xlm xlnet funnel'.split() # or all blocks; in the middle they fall back

@pytest.mark.parametrize('family', in_the_middle+whole_only)
def test_equal_to_the_plain_run(family, caplog):
    caplog.set_level(logging.INFO, logger='fastformers.callback.frozen_cache')
    a,b = fit(classifier(family)),fit(classifier(family, FrozenCache()))
    assert same(a, b), 'with dropout in all that is open'
    assert untouched(b)
    went_on = 'cannot go on' not in caplog.text
    assert went_on==(family in in_the_middle), caplog.text
    n = len(b.ran.n)
    assert b.ran.n[1]<b.ran.n[0], 'the second epoch of the head alone'
    if went_on: assert all(b.ran.n[i+1]<b.ran.n[i] for i in range(0, n-4, 2)) # the last steps open block 1 and the embeddings
    assert sum(b.ran.n)<sum(a.ran.n)

def test_the_plain_run_is_random():
    "Otherwise the test above says nothing about which layers drop"
    a,b = fit(classifier()),classifier()
    b.ran.before_train = lambda: torch.rand(1)
    assert not same_losses(a, fit(b))
def same_losses(a, b): return bool((losses(a)-losses(b)).abs().max()<1e-5)

@pytest.mark.parametrize('family', ['bert','roberta','gpt2','xlnet'])
def test_hugging_face_heads(family, caplog):
    a,b = (fit(classifier(family, *o, head='hf')) for o in ((), (FrozenCache(),)))
    assert same(a, b)
    if family=='xlnet': assert 'xlnet cannot go on from their kept states' in caplog.text # its head reads the last place, padding or not
    else: assert sum(b.ran.n[1:])<sum(a.ran.n[1:])                            # in the first epoch a family may be asked whether padding does harm

def test_left_padding_and_single_rows():
    for family,bs in (('gpt2',1), ('xlnet',3), ('bert',1)):
        data = small.iloc[:10].assign(is_valid=[i%4==3 for i in range(10)])
        assert same(fit(classifier(family, bs=bs, data=data)), fit(classifier(family, FrozenCache(), bs=bs, data=data)))

def test_other_schedules():
    def thaw(o): o.fit_schedule(chain_thaw, 1e-3, epochs=12)
    def by_hand(o):
        for k in (-1,-1,-2,2): o.freeze_to(k); o.fit(2, 1e-3)
        o.unfreeze(); o.fit(1, 1e-3)
    def parts(o): o.fit_schedule(lp_ft, 1e-3, epochs=2.7)
    for how in (thaw, by_hand, parts): assert same(fit(classifier(), how), fit(classifier('bert', FrozenCache()), how))

def test_opened_within_an_epoch():
    class Open(Callback):
        def before_batch(self):
            if self.training and self.train_iter==4: self.learn.freeze_to(-2)
    a,b = fit(classifier('bert', Open(), Modes()), head_alone),fit(classifier('bert', Open(), FrozenCache(), Modes()), head_alone)
    assert same(a, b)
    assert len(a.dls.train)==3 # the fifth batch is in the middle of an epoch
    for o in (a,b): assert [blocks for training,blocks,_ in o.modes.seen if training]==[[False]*3]*4+[[False,False,True]]*5

# --- beside everything else around a step

@pytest.mark.parametrize('name', ['RDrop','AuxiliaryLM','TokenAccumulation','GradientCheckpointing','cpu_bf16','CompileBlocks'])
def test_with_other_callbacks(name):
    make = dict(RDrop=RDrop, AuxiliaryLM=AuxiliaryLM, TokenAccumulation=lambda: TokenAccumulation(n_acc=9), GradientCheckpointing=GradientCheckpointing,
                cpu_bf16=lambda: cpu_bf16(enabled=True), CompileBlocks=lambda: CompileBlocks('aot_eager'))[name]
    how = head_and_block if name=='CompileBlocks' else gradually
    a,b = fit(classifier('bert', make()), how),fit(classifier('bert', make(), FrozenCache()), how)
    assert same(a, b, 2e-2 if name=='cpu_bf16' else 1e-5) and untouched(b)
    assert sum(b.ran.n)<sum(a.ran.n)
    if name=='AuxiliaryLM': assert b.frozen_cache.store.nbytes==0
def head_and_block(o): o.freeze_to(-2); o.fit(2, 1e-3)

def test_masked_texts_are_not_kept():
    learn = fit(classifier('bert', AuxiliaryLM(), FrozenCache()), lambda o: (o.freeze(), o.fit(2)))
    assert len(learn.frozen_cache.store)==len(small)

def test_bfloat16_keeps_half_the_bytes_where_states_have_it():
    fp32 = fit(classifier('bert', FrozenCache()), head_alone).frozen_cache.store
    bf16 = fit(classifier('bert', FrozenCache(), cpu_bf16(enabled=True)), head_alone).frozen_cache.store
    assert len(fp32)==len(bf16) and bf16.nbytes in (fp32.nbytes, fp32.nbytes//2)

def test_gradients_reach_a_pooler_under_autocast():
    "Weights that autocast has once cast without gradients get none later"
    grads = []
    class Grads(Callback):
        def before_step(self): grads.append(self.model.body.pooler.dense.weight.grad.abs().sum())
    learn = classifier('bert', FrozenCache(), cpu_bf16(enabled=True), Grads(), head='hf')
    fit(learn, lambda o: (o.freeze(), o.fit(2)))
    assert len(grads)>4 and all(o>0 for o in grads)

@pytest.mark.parametrize('cut', [2, 6, 10])
def test_a_stopped_run_needs_no_cache(tmp_path, cut):
    def how(o): o.fit_schedule(lp_ft, 1e-3, epochs=4)
    whole = fit(classifier('bert', FrozenCache()), how)
    for again in ((FrozenCache(),), ()):
        path = tmp_path/f'{len(again)}'
        with pytest.raises(KeyboardInterrupt): fit(classifier('bert', Resume(path, every=2), FrozenCache(), Power(cut)), how)
        assert same(whole, fit(classifier('bert', Resume(path, every=2), *again), how))

def test_interrupted_fits_leave_nothing():
    learn = classifier('bert', FrozenCache())
    learn.freeze()
    for n in (2,7):
        with pytest.raises(KeyboardInterrupt): fit(learn, lambda o: o.fit(3, cbs=Power(n)))
        assert untouched(learn) and '_with_events' not in vars(learn) and learn.frozen_cache.kept is None
    learn.validate(); learn.get_preds(); learn.predict(df.text[0]); learn.lr_find(show_plot=False, num_it=5)
    assert untouched(learn)

def test_export_and_pickle(tmp_path):
    learn = fit(classifier('bert', FrozenCache(path=tmp_path/'states')), head_alone)
    assert learn.frozen_cache.store.nbytes>0
    again = pickle.loads(pickle.dumps(learn.frozen_cache.store))
    assert len(again)==0 and again.path==tmp_path/'states'
    learn.remove_cb(learn.ran)
    learn.export(tmp_path/'learn.pkl')
    assert (tmp_path/'learn.pkl').stat().st_size<sum(p.nbytes for p in learn.model.parameters())*2

# --- what is thrown away, and when

def test_weights_that_changed_are_noticed():
    learn = classifier('bert', FrozenCache())
    def head(o): o.fit(1, 1e-3)
    learn.freeze()
    fit(learn, head); a = learn.frozen_cache._stamp
    fit(learn, head); assert learn.frozen_cache._stamp==a and learn.ran.n==[0]
    word = learn.model.body.embeddings.word_embeddings.weight
    for change in (lambda: word.data.add_(.1), lambda: torch.nn.init.normal_(word), lambda: learn.model.load_state_dict({k:v+.1 if v.is_floating_point() else v for k,v in learn.model.state_dict().items()})):
        change()
        fit(learn, head); assert learn.frozen_cache._stamp!=a and learn.ran.n[0]>0
        a = learn.frozen_cache._stamp

def test_weights_that_change_within_a_fit_are_noticed():
    class Load(Callback):
        "As `SaveModelCallback` and `Resume` do"
        def before_batch(self):
            if self.training and self.train_iter==4:
                with torch.no_grad(): self.model.body.embeddings.word_embeddings.weight.add_(torch.linspace(-1, 1, 32)) # a layer norm would hide a constant
    assert same(fit(classifier('bert', Load()), head_alone), fit(classifier('bert', Load(), FrozenCache()), head_alone))

def test_other_precision_is_noticed():
    learn = classifier('bert', FrozenCache()); learn.freeze()
    fit(learn, lambda o: o.fit(1)); fit(learn, lambda o: o.fit(1, cbs=cpu_bf16(enabled=True)))
    assert learn.ran.n[0]>0

def test_nothing_is_kept_when_all_is_open():
    learn = fit(classifier('bert', FrozenCache()), head_alone)
    assert learn.frozen_cache.store.nbytes>0
    learn.unfreeze(); fit(learn, lambda o: o.fit(1))
    assert learn.frozen_cache.store.nbytes==0 and len(learn.frozen_cache.store)==0

# --- room

@pytest.mark.parametrize('path', [False, True])
def test_budget(path, tmp_path, caplog):
    plain = fit(classifier())
    cb = FrozenCache(max_gb=1.5e-5, path=tmp_path/'states' if path else None)
    limited = fit(classifier('bert', cb), gradually)
    assert same(plain, limited) and sum(limited.ran.n)<sum(plain.ran.n)
    assert 'are full' in caplog.text
    learn = fit(classifier('bert', FrozenCache(max_gb=1.5e-5)), head_alone)
    assert 0<learn.frozen_cache.store.nbytes<=1.5e4 and 0<len(learn.frozen_cache.store)<len(small)
    assert learn.ran.n[0]>learn.ran.n[1]>0
    assert same(plain, fit(classifier('bert', FrozenCache(max_gb=1e-9)))), 'no room for a single row'

def test_full_disk(tmp_path, monkeypatch, caplog):
    plain,n = fit(classifier()),[0]
    from fastformers.callback import frozen_cache
    put = frozen_cache._put
    def full(f, data):
        n[0] += 1
        if n[0]>7: f.write(data[:5]); raise OSError(errno.ENOSPC, 'No space left on device') # a part may have been written
        put(f, data)
    monkeypatch.setattr(frozen_cache, '_put', full)
    assert same(plain, fit(classifier('bert', FrozenCache(path=tmp_path))))
    assert 'No space left' in caplog.text and n[0]>7

def test_nearly_full_disk(tmp_path, monkeypatch, caplog):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, 'disk_usage', lambda p: usage._replace(free=2**30))
    learn = fit(classifier('bert', FrozenCache(path=tmp_path)), head_alone)
    assert 'nearly full' in caplog.text and len(learn.frozen_cache.store)==0 and len(losses(learn))

def test_a_file_that_was_cut_short(tmp_path, caplog):
    class Cut(Callback):
        def before_epoch(self):
            if self.epoch==1: self.frozen_cache.store.file.truncate(100)
    assert same(fit(classifier(), head_alone), fit(classifier('bert', FrozenCache(path=tmp_path), Cut()), head_alone))
    assert 'end is missing' in caplog.text

def test_no_file_is_left(tmp_path):
    with pytest.raises(KeyboardInterrupt): fit(classifier('bert', FrozenCache(path=tmp_path/'a'/'b'), Power(5)), head_alone)
    assert not list((tmp_path/'a'/'b').iterdir())

# --- modes

def drops(learn): return [any(o.training for m in b for o in m.modules() if isinstance(o, nn.Dropout)) for b in block_modules(learn.model.body)]

class Modes(Callback):
    order = 3000
    def before_fit(self): self.seen = []
    def before_batch(self): self.seen.append((self.training, drops(self.learn), self.model.head.training))

def test_frozen_blocks_are_in_eval_mode():
    learn = fit(classifier('bert', Modes()))
    for training,blocks,head in learn.modes.seen: assert head==training and (training or not any(blocks))
    trained = [blocks for training,blocks,_ in learn.modes.seen if training]
    per = len(learn.dls.train)*2
    assert trained==[[False]*max(3-i,0)+[True]*min(i,3) for i in range(5) for _ in range(per)]

def test_modes_come_back():
    learn = classifier('bert', Modes())
    learn.freeze(); fit(learn, lambda o: o.fit(1))
    learn.unfreeze(); fit(learn, lambda o: o.fit(1))
    assert all(all(b) for t,b,_ in learn.modes.seen if t)
    learn.model.train(); assert all(m.training for m in learn.model.modules())

def test_what_somebody_else_put_into_eval_mode_stays():
    class Still(Callback):
        order = 50
        def before_train(self): self.model.body.encoder.layer[2].eval()
        def before_batch(self):
            if self.training and self.iter==2: self.learn.freeze_to(-2)     # opens block 3
    learn = classifier('bert', Still(), Modes()); learn.freeze()
    fit(learn, lambda o: o.fit(1))
    assert not any(b[2] for t,b,_ in learn.modes.seen if t)

def test_two_passes_of_a_frozen_body_agree():
    for family in tiny_families:
        learn = classifier(family); learn.create_opt(); learn.freeze()
        body,x = learn.model.body,learn.dls.one_batch()[0]
        if lowest_open(learn.model)!=len(block_modules(body))+2: continue      # a final norm is open
        learn.model.train()
        for m in frozen_modules(learn.model): m.training = False
        assert torch.equal(learn.model.states(x), learn.model.states(x)), family

def test_language_models_have_it_too():
    set_seed(0)
    learn = lm_learner(lm_dls(small, tiny_tok(), seq_len=32, bs=4), tiny_arch('bert'))
    seen = []
    class Look(Callback):
        order = 3000
        def before_batch(self): seen.append((self.training, drops(self.learn)))
    learn.create_opt(); learn.freeze_to(2)
    fit(learn, lambda o: o.fit(1, cbs=Look()))
    assert all(b==[False,t,t] for t,b in seen) and seen
    with pytest.raises(TypeError, match='for classifiers'): fit(learn, lambda o: o.fit(1, cbs=FrozenCache()))

# --- texts and tokens

def test_rows_are_told_apart_by_content():
    x = TensorTokens(torch.tensor([[5,6,7,0],[5,6,7,0],[5,6,7,0],[5,6,0,0]]), attention_mask=torch.tensor([[1,1,1,0],[1,1,1,1],[1,1,1,0],[1,1,0,0]]))
    a,b,c,d = row_keys(x)
    assert a==c and len({a,b,d})==3
    left = TensorTokens(torch.tensor([[9,9,5,6,7]]), attention_mask=torch.tensor([[0,0,1,1,1]]))
    assert row_keys(left)==[a]

def test_texts_that_share_a_row_are_left_alone():
    model = classifier().model.eval()
    store = RowStates(1.)
    x = TensorTokens(torch.arange(20).view(2,10)+30, starts=[[0]*5+[1]+[0]*4]*2)
    with torch.no_grad(), keeping(model, store) as kept:
        kept.prefix = find_prefix(model)
        a = model(x); b = model(x)
    with torch.no_grad(): assert torch.equal(a, model(x)) and torch.equal(a, b)
    assert len(store)==0

def test_probes_of_the_body_are_left_alone():
    "What the body is given by others than its model, in the middle of a fit too, is no row: padding is found unsafe all the same"
    from fastformers.models import core as models
    model = classifier('fnet').model.eval()
    x = classifier('fnet').dls.valid.one_batch()[0]
    store = RowStates(1.)
    with torch.no_grad(), keeping(model, store) as kept:
        kept.prefix = find_prefix(model)
        model(x[:2]); n = len(store)
        models._safe_sides.clear(); assert models.padding_safe(model.body)==()
        model.inputs(x[:2]); model.body(input_ids=x.ids[:1])
        assert len(store)==n==2

def test_awkward_texts():
    long = 'word '*20000
    data = small.assign(text=['', ' ', '😀'*50, long, 'é'*300, *small.text[5:]])
    def make(*cbs): set_seed(0); return classifier_learner(classifier_dls(data, tiny_tok(), bs=5, max_len=64, device='cpu'), tiny_arch('bert'), cbs=[Ran(), *cbs])
    a,b = fit(make(), head_alone),fit(make(FrozenCache()), head_alone)
    assert same(a, b) and sum(b.ran.n)<sum(a.ran.n)

def test_repeated_texts_are_kept_once():
    data = small.assign(text=small.text.iloc[0])
    learn = fit(classifier('bert', FrozenCache(), data=data), head_alone)
    assert len(learn.frozen_cache.store)==1

def test_states_that_are_no_numbers(caplog):
    learn = classifier('bert', FrozenCache())
    learn.model.body.embeddings.word_embeddings.weight.data[:] = float('nan')
    fit(learn, head_alone)
    assert 'cannot go on' in caplog.text and len(learn.frozen_cache.store)==0

def test_a_wrong_prefix_is_found_out():
    "The self-test sees a network that computes something else on top of kept states"
    model = classifier().model
    assert find_prefix(model, 2) is not None
    block = model.body.encoder.layer[2]
    plain,seen = block.forward,[]
    def nosy(h, *args, **kwargs): # what block 2 was given matters to block 3, as position biases do
        return plain(h, *args, **kwargs)+seen[-1]*1e-2
    model.body.encoder.layer[1].attention.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    model.body.encoder.layer[0].register_forward_pre_hook(lambda m, args: seen.append(args[0]*0))
    block.forward = nosy
    assert find_prefix(model, 2) is None

def test_errors(tmp_path):
    for o in (0, -1, float('nan'), '2', None):
        with pytest.raises(ValueError, match='more than 0'): FrozenCache(max_gb=o)
    (tmp_path/'f').touch()
    with pytest.raises(FileExistsError, match='is a file'): FrozenCache(path=tmp_path/'f')

class SaysNothingYet(nn.Module):
    "A head that begins at zero"
    def __init__(self, nf, n_out):
        super().__init__()
        self.lin = nn.Linear(nf, n_out)
        nn.init.zeros_(self.lin.weight); nn.init.zeros_(self.lin.bias)
    def forward(self, h, mask): return self.lin((h*mask[...,None]).sum(1)/mask.sum(1, keepdim=True))

@pytest.mark.parametrize('layers', [[1,-1], 'mix', -1])
def test_a_head_that_begins_at_zero_hides_nothing(layers):
    def head_alone_fast(o): o.freeze(); o.fit(2, 1e-1)
    made = dict(arch=tiny_arch('bert', num_hidden_layers=3), head=SaysNothingYet, layers=layers)
    plain,cached = (fit(classifier('bert', *cbs, **made), head_alone_fast) for cbs in ((), (FrozenCache(),)))
    assert same_losses(plain, cached)

def test_opening_a_pickle_makes_no_directory(tmp_path):
    learn = fit(classifier('bert', FrozenCache(path=tmp_path/'states')), head_alone)
    assert (tmp_path/'states').is_dir()
    data = pickle.dumps(learn.frozen_cache.store)
    shutil.rmtree(tmp_path/'states')
    pickle.loads(data); assert not (tmp_path/'states').exists()
    (tmp_path/'states').write_text('of somebody else'); pickle.loads(data)

def test_opened_by_a_callback_that_comes_later():
    class Late(Callback):
        order = 3000
        def before_batch(self):
            if self.training and self.train_iter==4: self.learn.unfreeze()
    assert same(fit(classifier('bert', Late()), head_alone), fit(classifier('bert', Late(), FrozenCache()), head_alone))

# --- what is made of the model in between, and what tells nobody of a change

class Look(Callback):
    "Asks the model something in the middle of an epoch, and puts all of it back into training mode"
    def after_batch(self):
        if self.training: self.model.eval(); torch.no_grad()(self.model)(self.xb[0]); self.model.train()

def test_who_puts_all_into_training_mode_wakes_nobody():
    plain = fit(classifier(), head_alone)
    assert same(plain, fit(classifier('bert', Look()), head_alone)) and same(plain, fit(classifier('bert', Look(), FrozenCache()), head_alone))

def test_weights_that_change_without_a_word_are_noticed():
    class Swap(Callback):
        "Averaged weights for validation, by `.data`, of which torch keeps no count"
        def before_validate(self): w = self.model.body.embeddings.word_embeddings.weight; self.old = w.data.clone(); w.data.add_(torch.linspace(-1, 1, 32)*(1+self.epoch))
        def after_validate(self): self.model.body.embeddings.word_embeddings.weight.data.copy_(self.old)
    class Once(Callback):
        def before_epoch(self):
            if self.epoch==1: w = self.model.body.embeddings.word_embeddings.weight; w.data = w.data+torch.linspace(-1, 1, 32)
    for cb in (Swap, Once): assert same(fit(classifier('bert', cb()), head_alone), fit(classifier('bert', cb(), FrozenCache()), head_alone))

class Copies(Callback):
    order = 5000
    def __init__(self, tmp): self.tmp = tmp
    def after_batch(self):
        if self.training and not (self.tmp/'model.pt').exists(): self.copy = copy.deepcopy(self.learn.model); torch.save(self.learn.model, self.tmp/'model.pt')
    def after_epoch(self): self.twin = copy.deepcopy(self.learn); self.learn.export(self.tmp/'learner.pkl')

switches = dict(cache=lambda: [FrozenCache()], checkpointing=lambda: [FrozenCache(), GradientCheckpointing()], compiled=lambda: [FrozenCache(), CompileBlocks('aot_eager')], mixout=lambda: [Mixout()])

@pytest.mark.parametrize('name', list(switches))
def test_copies_made_in_a_fit_compute_on_their_own(name, tmp_path, body_dir):
    made = Copies(tmp_path)
    learn = classifier_learner(classifier_dls(small, tiny_tok(), bs=5, device='cpu'), body_dir, cbs=switches[name]())
    fit(learn, lambda o: (o.freeze_to(-2), o.fit(2, 1e-3, cbs=made)))
    x = learn.dls.valid.one_batch()[0]
    for m in (made.copy, torch.load(tmp_path/'model.pt', weights_only=False), made.twin.model):
        a = m.eval()(x)
        with torch.no_grad(): m.body.embeddings.word_embeddings.weight.zero_()
        assert (m(x)-a).abs().max()>1e-3, 'its own weights count'
        m.requires_grad_(True); m.train(); m(x).sum().backward()
        assert all(p.grad is not None for b in block_modules(m.body) for o in b for p in o.parameters())
        assert not any(getattr(o, 'gradient_checkpointing', False) for o in m.modules()) and m.config._attn_implementation=='sdpa'
        for o in m.modules():
            if hasattr(o, 'p'): o.p = 0.
            for h in o._forward_pre_hooks.values(): assert h(o, (), {}) is None   # a hook that is left does nothing
        with torch.no_grad():
            for p in m.body.parameters(): p.add_(.1)
            assert torch.equal(m(x), m(x)), 'nothing is mixed in'
    if hasattr(made.twin, 'frozen_cache'): assert made.twin.frozen_cache.kept is None
    code = f"import torch; m = torch.load({str(tmp_path/'model.pt')!r}, weights_only=False).eval(); print(m(torch.arange(30, 50).view(2, 10)).shape)"
    if name=='cache': assert 'torch.Size([2, 3])' in subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, check=True).stdout # who opens it has not heard of fits
    fit(made.twin, lambda o: o.fit(1, 1e-3)); assert len(made.twin.recorder.values)==1 and 'forward' not in vars(learn.model.body)
    assert load_learner(tmp_path/'learner.pkl').predict('good work')[0] in learn.dls.vocab

@pytest.fixture(scope='module')
def body_dir(tmp_path_factory):
    set_seed(0)
    return lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=8), tiny_arch('bert')).save_encoder(tmp_path_factory.mktemp('frozen')/'lm')

@pytest.mark.parametrize('layers', ['mix', [-1,-2], -2, [0,2]], ids=str)
def test_several_layers_of_a_frozen_body_are_kept(layers):
    def how(o): o.freeze(); o.fit(3, 1e-2); o.unfreeze(); o.fit(1, 1e-3)
    arch = tiny_arch('bert', num_hidden_layers=3)
    plain,kept = (classifier('bert', *o, arch=arch, layers=layers) for o in ((), (FrozenCache(),)))
    fit(kept, head_alone)
    assert kept.ran.n[1:]==[0,0] and len(kept.frozen_cache.store)==len(small)
    n = len(plain.model.feed.mix.s) if layers=='mix' else len(plain.model.feed.layers)
    assert next(iter(kept.frozen_cache.store.rows.values())).shape[1]==32*n
    assert same(fit(plain, how), fit(classifier('bert', FrozenCache(), arch=arch, layers=layers), how))

def test_a_causal_family_s_own_head_is_kept_from_the_first_fit():
    assert fit(classifier('gpt2', FrozenCache(), head='hf'), head_alone).ran.n[1:]==[0,0]

def test_trying_draws_no_random_number():
    class Random(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(32, 3)
        def forward(self, h, mask): return nn.functional.dropout(self.l(h[:,0]), .3) # in eval mode too
    a,b = (fit(classifier('bert', *o, head=lambda nf,n: Random()), head_alone) for o in ((), (FrozenCache(),)))
    assert same(a, b)

def test_more_than_there_is_room_for(tmp_path, caplog):
    usage = shutil.disk_usage(tmp_path)
    fit(classifier('bert', FrozenCache(max_gb=usage.total/1e9*100, path=tmp_path/'states')), head_alone)
    assert 'are free on the disk' in caplog.text
    caplog.clear(); fit(classifier('bert', FrozenCache(max_gb=1e9)), head_alone)
    assert 'GB of memory of this machine: pass less' in caplog.text
    caplog.clear(); fit(classifier('bert', FrozenCache()), head_alone); assert '`max_gb`' not in caplog.text
