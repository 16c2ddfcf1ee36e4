"Every schedule on ten families: only planned groups move, frozen ones stay as they are, bit by bit, at each step, weight decay on; and what the table promises before a run is what happens in it"
import copy, functools, inspect, math
from functools import partial
import numpy as np, pytest, torch
from fastai.basics import Callback, DataLoaders, Learner, TfmdDL, set_seed
from test_contracts_common import *
from fastformers.models.adapters import add_adapters
from fastformers.callback.audit import FrozenAudit
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.callback.resume import Resume
from fastformers.callback.schedule_cost import schedule_cost
from fastformers.callback.schedule import (Schedule, ScheduleRunner, chain_thaw, discriminative_lrs, fit_schedule, full_tune, gradual_unfreeze, head_only, linear_warmup, lp_ft,
                                   plot_schedule, sequential_unfreeze, slanted_triangular, unfreeze_from, check_batches)
from fastformers.callback.freeze import BertAdam, FusedAdam

ten = 'bert roberta albert distilbert electra deberta-v2 mpnet xlnet gpt2 opt'.split()
schedules = dict(full_tune=full_tune, head_only=head_only, gradual_unfreeze=gradual_unfreeze, by_2=partial(gradual_unfreeze, by=2), sequential_unfreeze=sequential_unfreeze, lp_ft=lp_ft,
                 chain_thaw=chain_thaw, down_and_up=partial(unfreeze_from, firsts=[0,-1,1,-2,0]), no_embeddings=lambda n: Schedule([[0]+[1]*(n-1)]), discriminative=lambda n: gradual_unfreeze(n)*discriminative_lrs(n, .95))
df = tiny_df().iloc[:24]

def make(family, kind='classifier', **kwargs):
    set_seed(0)
    kwargs = {**dict(wd=.1, wd_bn_bias=True), **kwargs}
    if kind=='classifier': return quiet(classifier_learner(classifier_dls(df, tiny_tok(family), bs=3), tiny_arch(family), **kwargs))
    obj = (CLM if family in (*causal,'opt') else MLM)(tiny_tok(family))
    return quiet(lm_learner(lm_dls(df, obj.tfm, obj, seq_len=32, bs=3), tiny_arch(family), **kwargs))

@functools.cache
def trained(family, kind='classifier'):
    "A learner that has trained all of its groups, so that there are momenta to go wrong; tests train it further"
    learn = make(family, kind)
    learn.fit(1, lr=1e-2)
    return learn

def copies(opt): return [[p.detach().clone() for p in ps] for ps in opt.param_lists]

class Moves(Callback):
    "For each batch of training (the step of the table, for each group the share of its tensors that moved, whether it asked for gradients)"
    order,run_valid = ScheduleRunner.order-2,False
    def before_fit(self): self.log = []
    def before_batch(self): self.was = copies(self.opt)
    def after_batch(self):
        same = [[torch.equal(a, b) for a,b in zip(*o)] for o in zip(self.was, copies(self.opt))]
        self.log.append((self.schedule_runner.step, [1-np.mean(o) for o in same], [all(p.requires_grad for p in ps) for ps in self.opt.param_lists]))

def check(learn, f):
    "One batch a step of the schedule `f`; in it all groups move that are planned, and no tensor of another"
    n,n_iter = len(learn.opt.param_lists),len(learn.dls.train)
    table,moves,audit = f(n),Moves(),FrozenAudit()
    n_steps = len(table.epochs)
    table = Schedule(table.factors, np.full(n_steps, 1/n_iter))
    learn.fit_schedule(table, lr=1e-3, cbs=[moves, audit])
    assert [s for s,*_ in moves.log]==list(range(n_steps))
    for (s,shares,asked),planned in zip(moves.log, table.factors>0):
        assert asked==planned.tolist()
        for g,(share,p) in enumerate(zip(shares, planned)): assert share>=.5 if p else share==0, (s, g, share) # XLNet's mask embedding gets no gradient here
    assert audit.table.moved.tolist()==audit.table.planned.tolist()==(table.factors>0).flatten().tolist()

@pytest.mark.parametrize('schedule', list(schedules))
@pytest.mark.parametrize('family', ten)
def test_only_planned_groups_move(family, schedule): check(trained(family), schedules[schedule])

@pytest.mark.parametrize('schedule', ['gradual_unfreeze','chain_thaw'])
@pytest.mark.parametrize('family', ['bert','gpt2','opt'])
def test_only_planned_groups_of_a_language_model_move(family, schedule): check(trained(family, 'language model'), schedules[schedule])

@pytest.mark.parametrize('family', ['bert','gpt2'])
def test_bert_adam_leaves_frozen_groups_alone(family):
    learn = make(family, opt_func=BertAdam)
    learn.fit(1, lr=1e-2)
    check(learn, chain_thaw)

def test_the_check_itself_can_fail():
    class Nudge(Callback):
        order,run_valid = 0,False
        def after_batch(self): self.opt.param_lists[0][0].data[0] += 1e-3
    with pytest.raises(RuntimeError, match="group 'embeddings' is frozen in step 0 and moved: body.embeddings.word_embeddings.weight"):
        trained('bert').fit_schedule(gradual_unfreeze, lr=1e-3, epochs=5/6, cbs=[Nudge(), FrozenAudit()])
    moves = Moves()
    trained('bert').fit_schedule(head_only, lr=1e-3, epochs=1/6, cbs=[Nudge(), moves])
    assert moves.log[0][1][0]>0

def test_the_network_under_adapters_is_audited_too():
    learn = make('bert')
    add_adapters(learn.model); learn.opt = None
    audit = FrozenAudit()
    learn.fit_schedule(gradual_unfreeze, lr=1e-3, epochs=1.5, cbs=audit)
    table = audit.table.pivot(index='step', columns='group', values='moved')
    assert not table.pop('not in the optimizer').any() and table.iloc[-1].all() and not audit.table.planned[audit.table.group=='not in the optimizer'].any()
    class Nudge(Callback):
        order,run_valid = 0,False
        def after_batch(self): self.model.body.embeddings.word_embeddings.weight.data[0] += 1e-3
    with pytest.raises(RuntimeError, match="group 'not in the optimizer' is frozen in step 0 and moved: body.embeddings.word_embeddings.weight"):
        learn.fit_schedule(full_tune, lr=1e-3, cbs=[audit, Nudge()])

@pytest.mark.parametrize('kind', ['classifier','language model'])
def test_timing_a_schedule_changes_nothing(kind):
    "Masks depend on how many passes are over, dropout on random states: a trace of either would show"
    a,b = (make('bert', kind) for _ in range(2))
    for learn in (a, b):
        set_seed(2); learn.fit_schedule(lp_ft, lr=1e-3, epochs=1)
        if learn is b:
            state = torch.get_rng_state()
            cost = schedule_cost(learn, gradual_unfreeze, n=1)
            assert len(cost)==6 and (cost.measured>0).all() and torch.equal(state, torch.get_rng_state())
        learn.fit_schedule(gradual_unfreeze, lr=1e-3, epochs=2.5)
    for (k,p),q in zip(a.model.named_parameters(), b.model.parameters()): assert torch.equal(p, q), k

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

def test_refused_epochs_name_ones_that_work():
    for n_iter in (3, 7, 10):
        for f in (gradual_unfreeze, chain_thaw, partial(sequential_unfreeze, epochs=(1,2,5))):
            table = f(5)
            with pytest.raises(ValueError, match='gets none') as e: check_batches(table.rescale(1/n_iter), n_iter)
            check_batches(table.rescale(float(str(e.value).split('use epochs=')[1].split()[0])), n_iter)

# BERT's own Adam

def test_bert_adam_is_that_of_bert():
    "Six batches of a real network under linear warm-up, beside the update of BERT's optimization.py"
    learn = make('bert', drop_mult=0., opt_func=BertAdam, wd_bn_bias=False)
    theirs,batches,lrs = copy.deepcopy(learn.model),[],[]
    class Note(Callback):
        order,run_valid = 92,False
        def before_batch(self): batches.append((self.xb[0].clone(), self.yb[0].clone())); lrs.append(self.opt.hypers[0]['lr'])
    learn.fit_schedule(full_tune, lr=1e-3, shape=linear_warmup, cbs=Note())
    assert len(set(lrs))==len(lrs)==6
    m,v,decays = {},{},{k:learn.opt.state[p].get('do_wd',True) for k,p in learn.model.named_parameters()}
    assert not any(o for k,o in decays.items() if k.endswith('bias') or 'LayerNorm' in k) and any(decays.values())
    theirs.train()
    for (x,y),lr in zip(batches, lrs):
        theirs.zero_grad(); learn.loss_func(theirs(x), y).backward()
        with torch.no_grad():
            for k,p in theirs.named_parameters():
                if p.grad is None: continue
                m[k] = .9*m.get(k,0)+.1*p.grad
                v[k] = .999*v.get(k,0)+.001*p.grad**2
                update = m[k]/(v[k].sqrt()+1e-6)
                if decays[k]: update = update+.1*p
                p -= lr*update
    far = {k:gap(p, q) for (k,p),q in zip(learn.model.named_parameters(), theirs.parameters())}
    assert max(far.values())<2e-5, max(far, key=far.get)
    plain = make('bert', drop_mult=0., opt_func=partial(FusedAdam, sqr_mom=.999, eps=1e-6), wd_bn_bias=False)
    plain.fit_schedule(full_tune, lr=1e-3, shape=linear_warmup)
    assert max(gap(p, q) for p,q in zip(learn.model.parameters(), plain.model.parameters()))>1e-3

# A run that was stopped

def interrupted(path, opt_func, at, cbs=()):
    def learner(): return make('bert', opt_func=opt_func, cbs=[Resume(path, minutes=None, every=2), FrozenAudit(), *cbs])
    def fit(learn, *cbs): set_seed(1); learn.fit_schedule(chain_thaw, lr=1e-3, epochs=2.5, shape=linear_warmup, cbs=cbs)
    with pytest.raises(KeyboardInterrupt): fit(learner(), Power(at))
    learn = learner(); fit(learn)
    return learn

@pytest.mark.parametrize('at', [2, 7])
def test_bert_adam_and_the_audit_go_on_after_a_stop(tmp_path, at):
    whole = make('bert', opt_func=BertAdam, cbs=FrozenAudit())
    set_seed(1); whole.fit_schedule(chain_thaw, lr=1e-3, epochs=2.5, shape=linear_warmup)
    cut = interrupted(tmp_path, BertAdam, at)
    for (k,p),q in zip(whole.model.named_parameters(), cut.model.parameters()): assert torch.equal(p, q), k
    assert cut.frozen_audit.table.equals(whole.frozen_audit.table) and len(whole.frozen_audit.table)==30

def test_another_optimizer_does_not_go_on(tmp_path):
    learn = make('bert', opt_func=BertAdam, cbs=Resume(tmp_path, minutes=None, every=2))
    with pytest.raises(KeyboardInterrupt): learn.fit_schedule(lp_ft, lr=1e-3, cbs=Power(3))
    other = make('bert', opt_func=partial(FusedAdam, sqr_mom=.999, eps=1e-6), cbs=Resume(tmp_path, minutes=None, every=2))
    with pytest.raises(ValueError, match='optimizer was BertAdam, is FusedAdam'): other.fit_schedule(lp_ft, lr=1e-3)

def test_the_audit_sees_a_move_between_a_stop_and_its_continuation(tmp_path):
    class Nudge(Callback):
        order,run_valid = 0,False
        def after_batch(self):
            if self.train_iter==9: self.opt.param_lists[1][0].data.view(-1)[0] += 1e-6
    with pytest.raises(RuntimeError, match="group 'block 1' is frozen in step 3"): interrupted(tmp_path, BertAdam, 7, [Nudge()])

# Names and figures

def test_names_of_the_design_are_there():
    learn = trained('bert')
    assert fit_schedule is Learner.fit_schedule and list(inspect.signature(fit_schedule).parameters)[:4]==['self','schedule','lr','epochs']
    fit_schedule(learn, full_tune, 1e-3, 1/6)
    assert len(learn.recorder.losses)==1
    assert plot_schedule(gradual_unfreeze(5)*discriminative_lrs(5)).get_title().startswith('1 of 5')
    assert slanted_triangular(.1)==1

def test_cost_of_a_table_by_hand():
    L = 12
    for k in range(L+1): assert unfreeze_from(L+2, [L+1-k]).cost()==pytest.approx((L+2*k)/(3*L))
    assert chain_thaw(4).step_costs()==pytest.approx([2/6, 4/6, 5/6, 4/6, 1])
    assert [gradual_unfreeze(n, by=b).cost()<1 for n in (2,5,14) for b in (1,3)]==[True]*6

@pytest.mark.parametrize('f,words', [
    (lambda: gradual_unfreeze(6), 'schedule has 6 groups and the optimizer of this learner 5'), (lambda: Schedule([[1]*4]), 'schedule has 4 groups'),
    (lambda: Schedule([[0,0,0,0,-1]]), 'group 4 in step 0 is -1'), (lambda: Schedule([[0,0,0,0,0]]), 'step 0 freezes every group'), (lambda: Schedule([[1]*5], math.nan), 'step 0 lasts nan'),
    (lambda: Schedule([[1]*5], 0), 'step 0 lasts 0 epochs'), (lambda: unfreeze_from(5, [5]), 'there is no group 5; 5 groups are numbered 0 to 4'), (lambda: unfreeze_from(5, [-1,-6]), 'there is no group -6'),
    (lambda: discriminative_lrs(5, -2.6), 'got -2.6'), (lambda: discriminative_lrs(5, 0), 'got 0'), (lambda: full_tune(5).rescale(math.nan), 'got nan'), (lambda: chain_thaw(0), 'at least 1, got 0'),
    (lambda: gradual_unfreeze(5).rescale(.3), '5 steps share 2 batches')])
def test_what_cannot_be_trained_says_so(f, words):
    before = [p.clone() for p in trained('bert').model.parameters()]
    with pytest.raises(ValueError, match=words): trained('bert').fit_schedule(f(), lr=1e-3)
    assert all(map(torch.equal, before, trained('bert').model.parameters()))

def test_numbers_of_any_kind_are_one_factor():
    n = 5
    for o in (2.6, np.float32(2.6), np.array(2.6), torch.tensor(2.6)): assert np.allclose(discriminative_lrs(n, o), 2.6**np.arange(-n+1., 1))
    assert discriminative_lrs(n, [1,2,3,4,0]).tolist()==[1,2,3,4,0]
    for bad in ([2.6], [[2.6]*n], [1.]*(n+1)):
        with pytest.raises(ValueError, match='pass a row of 5'): discriminative_lrs(n, bad)

@pytest.mark.parametrize('shape, ex', [('linear', TypeError), (lambda p: float('nan'), ValueError), (lambda p: -1., ValueError), (lambda p: None, ValueError), (lambda p: float('inf'), ValueError)])
def test_a_shape_is_looked_at_before_it_is_used(shape, ex):
    with pytest.raises(ex, match='`shape`'): ScheduleRunner(full_tune(2), [1.,1.], shape)
    assert ScheduleRunner(full_tune(2), [1.,1.], lambda p: torch.tensor(.5))

def test_what_opens_later_may_begin_with_nothing_open():
    def learn(): return classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert'))
    l = learn(); l.model.requires_grad_(False); fit_schedule(l, head_only, 1e-3)
    class Open(Callback):
        def before_train(self): self.learn.freeze_to(-1)
    l = learn(); l.model.requires_grad_(False); l.fit(1, 1e-3, cbs=Open())
    l = learn(); l.create_opt(); l.freeze_to(len(l.opt.param_lists))
    with pytest.raises(ValueError, match='nothing is open.*5 groups, 0 .lowest. to 4'): l.fit(1, 1e-3)
    fit_schedule(l, full_tune, 1e-3)

def test_a_cost_is_that_of_what_could_run():
    with pytest.raises(ValueError, match='gets none'): schedule_cost(classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert')), chain_thaw, epochs=.01)
