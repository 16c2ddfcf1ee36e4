"Every schedule on ten families: only planned groups move; frozen weights stay as they are, bit by bit, weight decay on, also under plain `freeze_to`; tied weights step once"
import copy, functools, inspect, math
from functools import partial
import numpy as np, pytest, torch
from fastai.basics import Callback, DataLoaders, Learner, TfmdDL, set_seed
from test_contracts_common import *
from fastformers.models.adapters import add_adapters
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.callback.schedule import (Schedule, ScheduleRunner, chain_thaw, check_batches, discriminative_lrs, full_tune, gradual_unfreeze, head_only,
                                           linear_warmup, lp_ft, plot_schedule, sequential_unfreeze, table_for, unfreeze_from)
from fastformers.learner.optimizer import FusedAdam

ten = 'bert roberta albert distilbert electra deberta-v2 mpnet xlnet gpt2 opt'.split()
schedules = dict(full_tune=full_tune, head_only=head_only, gradual_unfreeze=gradual_unfreeze, by_2=partial(gradual_unfreeze, by=2), sequential_unfreeze=sequential_unfreeze, lp_ft=lp_ft,
                 chain_thaw=chain_thaw, down_and_up=partial(unfreeze_from, firsts=[0,-1,1,-2,0]), no_embeddings=lambda n: Schedule([[0]+[1]*(n-1)]), discriminative=lambda n: gradual_unfreeze(n)*discriminative_lrs(n, .95))
df = tiny_df().iloc[:24]

def make(family, kind='classifier', **kwargs):
    set_seed(0)
    kwargs = {**dict(wd=.1, wd_bn_bias=True), **kwargs}
    if kind=='classifier': return quiet(classifier_learner(classifier_dls(df, tiny_tok(family), bs=3), tiny_arch(family), **kwargs))
    obj = (CLM if family=='opt' else type(objective(family)))(tiny_tok(family))
    return quiet(lm_learner(lm_dls(df, obj.tfm, obj, seq_len=32, bs=3), tiny_arch(family), **kwargs))

@functools.cache
def trained(family, kind='classifier'):
    "A learner that has trained all of its groups, so that there is momentum; tests train it further"
    learn = make(family, kind)
    learn.fit(1, lr=1e-2)
    return learn

def copies(opt): return [[p.detach().clone() for p in ps] for ps in opt.param_lists]

class Moves(Callback):
    "For each training batch: the share of each group's tensors that moved, and whether all of them required a gradient"
    order,run_valid = ScheduleRunner.order-2,False
    def before_fit(self): self.log = []
    def before_batch(self): self.was = copies(self.opt)
    def after_batch(self):
        same = [[torch.equal(a, b) for a,b in zip(*o)] for o in zip(self.was, copies(self.opt))]
        self.log.append(([1-np.mean(o) for o in same], [all(p.requires_grad for p in ps) for ps in self.opt.param_lists]))

def check(learn, f):
    "One batch a step of the schedule `f`: all planned groups move, and no tensor of another"
    n,n_iter = len(learn.opt.param_lists),len(learn.dls.train)
    table,moves = f(n),Moves()
    table = Schedule(table.factors, np.full(len(table.epochs), 1/n_iter))
    learn.fit_schedule(table, lr=1e-3, cbs=moves)
    assert len(moves.log)==len(table.epochs)
    for (shares,grads),planned in zip(moves.log, table.factors>0):
        assert grads==planned.tolist()
        for g,(share,p) in enumerate(zip(shares, planned)): assert share>=.5 if p else share==0, (g, share) # XLNet's mask embedding gets no gradient here

@pytest.mark.parametrize('schedule', list(schedules))
@pytest.mark.parametrize('family', ten)
def test_only_planned_groups_move(family, schedule): check(trained(family), schedules[schedule])

@pytest.mark.parametrize('schedule', ['gradual_unfreeze','chain_thaw'])
@pytest.mark.parametrize('family', ['bert','gpt2','opt','llama','modernbert'])
def test_only_planned_groups_of_a_language_model_move(family, schedule): check(trained(family, 'language model'), schedules[schedule])

def test_the_check_itself_can_fail():
    class Nudge(Callback):
        order,run_valid = 0,False
        def after_batch(self): self.opt.param_lists[0][0].data[0] += 1e-3
    moves = Moves()
    trained('bert').fit_schedule(head_only, lr=1e-3, epochs=1/6, cbs=[Nudge(), moves])
    assert moves.log[0][0][0]>0

def test_the_network_under_adapters_stays_as_it_is():
    learn = make('bert')
    add_adapters(learn.model); learn.opt = None
    learn.create_opt()
    inside = {id(p) for ps in learn.opt.param_lists for p in ps}
    below = {k:p.detach().clone() for k,p in learn.model.named_parameters() if id(p) not in inside}
    learn.fit_schedule(gradual_unfreeze, lr=1e-3, epochs=1.5)
    assert below and all(torch.equal(p, below[k]) for k,p in learn.model.named_parameters() if k in below)

@pytest.mark.parametrize('kind', ['classifier','language model'])
@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_plain_freeze_to_freezes(family, kind):
    learn = trained(family, kind)
    n = len(learn.opt.param_lists)
    for k in (-1, -2, 1):
        moves = Moves()
        learn.freeze_to(k)
        learn.fit(1, lr=1e-2, cbs=moves)
        assert moves.log and all([o>0 for o in shares]==[i>=k%n for i in range(n)] for shares,_ in moves.log)
    learn.unfreeze(); moves = Moves()
    learn.fit_one_cycle(1, 1e-2, cbs=moves)
    assert all(min(shares)>0 for shares,_ in moves.log)

def test_freezing_within_a_training_run_holds_at_once():
    class Freeze(Callback):
        "Freeze all but the head while gradients of the last step are still there"
        run_valid = False
        def before_batch(self):
            if self.iter==1: self.learn.freeze_to(-1)
    learn,moves = make('bert'),Moves()
    learn.fit(1, lr=1e-2)
    learn.fit(1, lr=1e-2, cbs=[Freeze(), moves])
    assert [[o>0 for o in shares] for shares,_ in moves.log[:3]]==[[True]*5]+[[False]*4+[True]]*2

@pytest.mark.exact
@pytest.mark.parametrize('family', ['bert','albert','gpt2','openai-gpt'])
def test_tied_weights_are_stepped_once(family):
    obj = objective(family)
    learn = quiet(lm_learner(lm_dls(tiny_df().iloc[:12], obj.tfm, obj, bs=64), tiny_arch(family), drop_mult=0., wd=.1, wd_bn_bias=True))
    model,theirs = learn.model,copy.deepcopy(learn.model)
    assert model.hf.get_input_embeddings().weight is model.hf.get_output_embeddings().weight
    learn.create_opt()
    inside = [id(p) for g in learn.opt.param_lists for p in g]
    assert len(inside)==len(set(inside)) and set(inside)==set(map(id, model.parameters()))
    # one step of fastai's loop, and one of plain torch, which knows a shared tensor when it sees one
    x,y = learn.dls.train.one_batch()
    learn.fit(1, lr=1e-2)
    assert len(learn.recorder.losses)==1
    opt = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(.9,.99), eps=1e-5, weight_decay=.1)
    obj.loss_func(theirs(x), y).backward(); opt.step()
    for (n,p),q in zip(model.named_parameters(), theirs.parameters()): assert gap(p, q)<1e-5, n

@pytest.mark.parametrize('family', ['bert','llama','t5'])
def test_norms_and_biases_are_not_decayed(family):
    "RMSNorm too, which fastai does not know"
    learn = make(family, wd_bn_bias=False)
    learn.fit_schedule(full_tune, 1e-3, epochs=.2)
    decays = {k:learn.opt.state[p].get('do_wd',True) for k,p in learn.model.body.named_parameters()}
    spared = {k for k in decays if 'norm' in k.lower() or k.endswith('bias')}
    assert spared=={k for k,v in decays.items() if not v} and len(spared)<len(decays)
    learn = make(family, wd_bn_bias=True)
    learn.fit_schedule(full_tune, 1e-3, epochs=.2)
    assert all(o.get('do_wd',True) for o in learn.opt.state.values())

# Where a step begins

def steps_run(table, n_iter):
    "The step that each batch of a run belongs to"
    x = torch.randn(n_iter, 2)
    ds = torch.utils.data.TensorDataset(x, x)
    learn = quiet(Learner(DataLoaders(TfmdDL(ds, bs=1, num_workers=0), TfmdDL(ds, bs=64, num_workers=0), device='cpu'), torch.nn.Linear(2,2), loss_func=torch.nn.MSELoss()))
    class Note(Callback):
        order,run_valid = 91,False
        def before_fit(self): self.steps = []
        def before_batch(self): self.steps.append(self.schedule_runner.step)
    note = Note(); learn.fit_schedule(table, lr=1e-3, cbs=note)
    return note.steps

@pytest.mark.parametrize('seed', range(4))
def test_each_step_begins_at_the_batch_that_was_said(seed):
    rng = np.random.default_rng(seed)
    n_iter = int(rng.integers(8, 30))
    epochs = rng.integers(1, 6, int(rng.integers(2, 8)))
    table = Schedule(np.ones((len(epochs),1)), epochs).rescale([.99, 1, 1.37, 2.5][seed])
    starts = table.starts(n_iter)
    if (np.diff(starts)<1).any(): pytest.skip('a step without a batch is refused')
    assert steps_run(table, n_iter)==[i for i,k in enumerate(np.diff(starts)) for _ in range(k)]

def test_a_schedule_within_one_epoch():
    table = unfreeze_from(1, [0]*7, epochs=[.1,.15,.15,.1,.2,.1,.2])
    assert steps_run(table, 10)==[0,1,1,2,3,4,4,5,6,6] and table.starts(10).tolist()==[0,1,3,4,5,7,8,10]
    assert steps_run(table, 20)==[i for i,k in enumerate([2,3,3,2,4,2,4]) for _ in range(k)]

def test_names_are_schedules_and_anneals():
    assert str(table_for('gradual_unfreeze', 5))==str(gradual_unfreeze(5))
    learn,named = make('bert'),make('bert')
    for o,how in ((learn,(full_tune,linear_warmup)), (named,('full_tune','linear_warmup'))): o.fit_schedule(how[0], 1e-3, epochs=1, anneal=how[1])
    assert learn.recorder.lrs==named.recorder.lrs
    with pytest.raises(ValueError, match='did you mean gradual_unfreeze?'): learn.fit_schedule('gradual_unfreze')

def test_refused_epochs_name_ones_that_work():
    for n_iter in (3, 7, 10):
        for f in (gradual_unfreeze, chain_thaw, partial(sequential_unfreeze, epochs=(1,2,5))):
            table = f(5)
            with pytest.raises(ValueError, match='gets no batch') as e: check_batches(table.rescale(1/n_iter), n_iter)
            check_batches(table.rescale(float(str(e.value).split('use epochs=')[1].split()[0])), n_iter)

# The optimizer

@pytest.mark.exact
def test_fused_adam_is_that_of_the_paper():
    "Six batches of a real network under linear warm-up, beside the update of Loshchilov & Hutter (2019), algorithm 2"
    learn = make('bert', drop_mult=0., opt_func=partial(FusedAdam, sqr_mom=.999, eps=1e-6), wd_bn_bias=False)
    theirs,batches,lrs = copy.deepcopy(learn.model),[],[]
    class Note(Callback):
        order,run_valid = 92,False
        def before_batch(self): batches.append((self.xb[0].clone(), self.yb[0].clone())); lrs.append(self.opt.hypers[0]['lr'])
    learn.fit_schedule(full_tune, lr=1e-3, anneal=linear_warmup, cbs=Note())
    assert len(set(lrs))==len(lrs)==6
    m,v,t,decays = {},{},{},{k:learn.opt.state[p].get('do_wd',True) for k,p in learn.model.named_parameters()}
    assert not any(o for k,o in decays.items() if k.endswith('bias') or 'LayerNorm' in k) and any(decays.values())
    theirs.train()
    for (x,y),lr in zip(batches, lrs):
        theirs.zero_grad(); learn.loss_func(theirs(x), y).backward()
        with torch.no_grad():
            for k,p in theirs.named_parameters():
                if p.grad is None: continue
                m[k] = .9*m.get(k,0)+.1*p.grad
                v[k] = .999*v.get(k,0)+.001*p.grad**2
                t[k] = t.get(k,0)+1
                update = m[k]/(1-.9**t[k])/((v[k]/(1-.999**t[k])).sqrt()+1e-6)
                if decays[k]: update = update+.1*p
                p -= lr*update
    far = {k:gap(p, q) for (k,p),q in zip(learn.model.named_parameters(), theirs.parameters())}
    assert max(far.values())<2e-5, max(far, key=far.get)
    assert max(gap(p, q) for p,q in zip(learn.model.parameters(), make('bert').model.parameters()))>1e-3

# Figures and errors

def test_a_picture_needs_no_model():
    for o in (gradual_unfreeze,'gradual_unfreeze'): assert plot_schedule(o, n_groups=8).get_title().startswith('1 of 8')

@pytest.mark.parametrize('f,words', [
    (lambda: gradual_unfreeze(6), 'schedule has 6 groups, expected 5'), (lambda: Schedule([[0,0,0,0,-1]]), 'are 0 .frozen. or more'), (lambda: Schedule([[0,0,0,0,0]]), 'each step trains a group'),
    (lambda: Schedule([[1]*5], math.nan), 'must be above 0'), (lambda: Schedule([[1]*5], 0), 'must be above 0'),
    (lambda: full_tune(5)*discriminative_lrs(5, -2.6), 'are 0 .frozen. or more'), (lambda: full_tune(5).rescale(-1), 'must be above 0'), (lambda: gradual_unfreeze(5).rescale(.3), 'gets no batch')])
def test_what_cannot_be_trained_says_so(f, words):
    before = [p.clone() for p in trained('bert').model.parameters()]
    with pytest.raises(ValueError, match=words): trained('bert').fit_schedule(f(), lr=1e-3)
    assert all(map(torch.equal, before, trained('bert').model.parameters()))

def test_all_may_be_frozen_before_a_schedule():
    learn = make('bert'); learn.create_opt(); learn.freeze_to(len(learn.opt.param_lists))
    learn.fit_schedule(head_only, 1e-3, epochs=.2)
