"A run that was killed anywhere ends as the one that was not, bit by bit"
import itertools, json, os, random, resource, signal, subprocess, sys, time
from pathlib import Path
import pytest, torch
from fastai.basics import Callback, ranger
from fastai.callback.schedule import fit_one_cycle, lr_find
from fastai.torch_core import set_seed
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.papers.mt_dnn import AuxiliaryTasks
from fastformers.callback.resume import Resume
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

script = '''
import sys, json, logging, time, warnings
warnings.filterwarnings('ignore')
logging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')
import torch
import fastai.callback.schedule
from fastai.basics import defaults, Callback, OptimWrapper
from fastai.callback.progress import ProgressCallback
from fastai.callback.tracker import EarlyStoppingCallback
from fastai.callback.training import GradientClip
from fastai.optimizer import Adam
from fastai.torch_core import set_seed
from functools import partial
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]
from fastformers.callback.compute import TokenAccumulation
from fastformers.data.block import lm_dls, classifier_dls
from fastformers.learner.core import lm_learner, classifier_learner
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from kills import fingerprint
root,out = sys.argv[1:3]
class Slow(Callback): # steps, of training and of validation, that can be hit
    order = 2000
    def after_batch(self): time.sleep(.01)
df,tok,arch,res = tiny_df(),tiny_tok(),tiny_arch('bert', num_hidden_layers=2),{}
def note(learn, name): # where a fit is over and another follows, its optimizer is in the other's checkpoints
    res[name] = fingerprint(learn, optimizer=name not in ('unfreeze 0','unfreeze 1'))
def lm(name, **kwargs):
    set_seed(3)
    learn = lm_learner(lm_dls(df, tok, seq_len=32, bs=8), arch, cbs=[Resume(f'{root}/{name}', every=2, minutes=None), Slow()], **kwargs)
    assert any(m.p>0 for m in learn.model.modules() if isinstance(m, torch.nn.Dropout))
    return learn
learn = lm('one_cycle'); learn.fit_one_cycle(3, 1e-3); note(learn, 'one_cycle')
learn = lm('schedule'); learn.fit_schedule(gradual_unfreeze, 1e-3, epochs=3.4, cbs=EarlyStoppingCallback(patience=9)); note(learn, 'schedule')
learn = lm('accumulate', opt_func=Adam); learn.fit_one_cycle(3, 1e-3, cbs=[TokenAccumulation(n_tokens=400), GradientClip(.1)]); note(learn, 'accumulate')
learn = lm('torch', opt_func=partial(OptimWrapper, opt=torch.optim.AdamW)); learn.fit_flat_cos(2, 1e-3); note(learn, 'torch')
set_seed(3)
learn = classifier_learner(classifier_dls(df, tok, bs=8), arch, cbs=[Resume(f'{root}/unfreeze', every=3, minutes=None), Slow()])
for i in range(3):
    learn.freeze_to(-i-1)
    learn.fit_one_cycle(2, 1e-3/(i+1)); note(learn, f'unfreeze {i}')
open(out, 'w').write(json.dumps(res))
'''

benchmarks = Path(__file__).parent.parent/'benchmarks' # more kills in kills.py there

def start(tmp, ckpt, out):
    (tmp/'run.py').write_text(script)
    return subprocess.Popen([sys.executable, tmp/'run.py', tmp/ckpt, tmp/f'{out}.json'], stdout=subprocess.DEVNULL, stderr=open(tmp/f'{out}.log','a'), env={**os.environ, 'OMP_NUM_THREADS':'1', 'PYTHONPATH':os.pathsep.join([str(benchmarks), *sys.path])})

def finish(tmp, ckpt, out):
    p = start(tmp, ckpt, out)
    assert p.wait()==0, (tmp/f'{out}.log').read_text()[-2000:]
    return json.loads((tmp/f'{out}.json').read_text())

def kill(tmp, name, n, extra):
    "Start, wait until `n` more checkpoints than before were seen in `name` and `extra` seconds, then SIGKILL"
    p,seen = start(tmp, 'ckpt', 'cut'),{o.name for o in (tmp/'ckpt'/name).glob('fit*')}
    old = len(seen)
    while p.poll() is None and len(seen)<old+n:
        seen |= {o.name for o in (tmp/'ckpt'/name).glob('fit*')}
        time.sleep(.002)
    time.sleep(extra)
    assert p.poll() is None, (tmp/'cut.log').read_text()[-2000:]
    p.send_signal(signal.SIGKILL); p.wait()

@pytest.mark.slow
def test_killed_runs_end_as_the_whole_one(tmp_path):
    whole,rng = finish(tmp_path, 'whole', 'whole'),random.Random()
    for name in ('one_cycle','schedule','accumulate','unfreeze'): kill(tmp_path, name, rng.randint(1,4), rng.random()*.08)
    cut = finish(tmp_path, 'ckpt', 'cut')
    log = (tmp_path/'cut.log').read_text()
    assert log.count('continues after')>=2 and 'was finished before' in log
    for k in whole: assert cut[k]==whole[k], k
    assert finish(tmp_path, 'ckpt', 'cut')==whole                                      # all fits are over

class Stop(Callback):
    "Interrupt at batch `when` of training, or of validation"
    order = 2000
    def __init__(self, when, training=True): self.at,self.where,self.count = when,training,itertools.count(1) # nothing that is compared, or saved
    def after_batch(self):
        if self.training==self.where and next(self.count)==self.at: raise KeyboardInterrupt

def learner(path, kind='lm', width=32, bs=8, df=None, in_fit=False, dls_args=None, **kwargs):
    set_seed(1)
    df,f,g = (tiny_df() if df is None else df),*((lm_dls,lm_learner) if kind=='lm' else (classifier_dls,classifier_learner))
    return g(f(df, tiny_tok(), bs=bs, **(dls_args or dict(seq_len=32) if kind=='lm' else {})), tiny_arch('bert', num_hidden_layers=1, hidden_size=width),
             cbs=None if in_fit else Resume(path, **{'every':2, **kwargs}))

def fit(learn, stop=None, n=3, lr=1e-3, cbs=()):
    with learn.no_logging(), learn.no_bar():
        try: learn.fit_one_cycle(n, lr, cbs=[*cbs, *([stop] if stop else [])])
        except KeyboardInterrupt: pass
    return learn

def same(a, b):
    for (k,p),q in zip(a.model.state_dict().items(), b.model.state_dict().values()): assert torch.equal(p, q), k
    assert list(map(list, a.recorder.values))==list(map(list, b.recorder.values)) and [float(o) for o in a.recorder.losses]==[float(o) for o in b.recorder.losses]

@pytest.fixture(scope='module')
def whole(tmp_path_factory): return fit(learner(tmp_path_factory.mktemp('whole')/'ckpt'))

@pytest.mark.parametrize('every,when', [(1,7), (5,13), (7,8)])
def test_any_place(whole, tmp_path, every, when):
    fit(learner(tmp_path, every=every), Stop(when))
    again = learner(tmp_path, every=every)
    same(fit(again), whole)
    assert again.dls.train.passes==whole.dls.train.passes==3

def test_stopped_twice_in_one_process(whole, tmp_path):
    learn = fit(learner(tmp_path), Stop(9))
    same(fit(fit(learn, Stop(5))), whole)

def test_with_progress_bar(whole, tmp_path):
    for stop in (Stop(19), None, None):
        learn = learner(tmp_path)
        try: learn.fit_one_cycle(3, 1e-3, cbs=stop)
        except KeyboardInterrupt: pass
    same(learn, whole)

def test_as_callback_of_a_fit(tmp_path):
    a = learner(None, in_fit=True)
    fit(a, cbs=[Resume(tmp_path/'a', every=3)]); fit(a, cbs=[Resume(tmp_path/'a', every=3)])
    b = learner(None, in_fit=True)
    fit(b, cbs=[Resume(tmp_path/'b', every=3)]); fit(b, Stop(9), cbs=[Resume(tmp_path/'b', every=3)])
    c = learner(None, in_fit=True)
    fit(c, cbs=[Resume(tmp_path/'b', every=3)]); fit(c, cbs=[Resume(tmp_path/'b', every=3)])
    same(a, c)

def test_other_verbs_are_no_fits(whole, tmp_path):
    learn = learner(tmp_path)
    learn.validate(); learn.get_preds()
    with learn.no_logging(), learn.no_bar(): learn.lr_find(num_it=3, show_plot=False)
    assert not list(tmp_path.glob('fit*'))
    fit(learn, Stop(9)); learn.validate()
    assert sorted(o.name for o in tmp_path.glob('fit*'))==['fit000-00000006','fit000-00000008']

def test_loader_by_tokens_and_workers(tmp_path):
    args = dict(seq_len=32, max_tokens=200)
    a = fit(learner(tmp_path/'a', dls_args=args), n=2)
    fit(learner(tmp_path/'b', dls_args=args), Stop(7), n=2)
    same(fit(learner(tmp_path/'b', dls_args=args), n=2), a)
    fit(learner(tmp_path/'c', dls_args=args), Stop(7), n=2)
    c = learner(tmp_path/'c', dls_args=args)
    c.dls.loaders[0] = c.dls.train.new(num_workers=1)
    same(fit(c, n=2), a)

def test_other_runs_are_refused(whole, tmp_path):
    fit(learner(tmp_path), Stop(5))
    df = tiny_df()
    for what,learn,args in (('lr',learner(tmp_path),dict(lr=1e-2)), ('epochs',learner(tmp_path),dict(n=4)), ('model',learner(tmp_path, width=16),{}), ('bs',learner(tmp_path, bs=4),{}),
                            ('training rows',learner(tmp_path, df=df.assign(text=df.text+'!')),{}), ('model',learner(tmp_path, 'classifier'),{})):
        with pytest.raises(ValueError, match=f'another run: .*{what} was'): fit(learn, **args)
    same(fit(learner(tmp_path)), whole)                                                  # which changed nothing

def test_ctrl_c_leaves_a_checkpoint(whole, tmp_path):
    class CtrlC(Callback):
        def after_pred(self):
            if self.training and self.train_iter==8: os.kill(os.getpid(), signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    fit(learner(tmp_path, every=None), CtrlC())
    assert [o.name for o in tmp_path.glob('fit*')]==['fit000-00000009'] and signal.getsignal(signal.SIGINT)==before
    same(fit(learner(tmp_path, every=None)), whole)

def test_damaged_checkpoints_fall_back(whole, tmp_path, caplog):
    fit(learner(tmp_path, keep=3), Stop(9))
    old,mid,new = sorted(tmp_path.glob('fit*'))
    f = new/'tensors.safetensors'; f.write_bytes(f.read_bytes()[:-1])
    (mid/'state.json').write_text('{')
    same(fit(learner(tmp_path)), whole)
    assert caplog.text.count('is damaged')==2

def test_a_checkpoint_that_cannot_be_written(whole, tmp_path, caplog):
    "Training goes on; earlier checkpoints stay"
    fit(learner(tmp_path), Stop(5))
    before,limit = sorted(tmp_path.rglob('*')),resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try: same(fit(learner(tmp_path)), whole)
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(tmp_path.rglob('*'))==before and 'cannot write a checkpoint' in caplog.text

def test_no_pickle_and_few_are_kept(whole, tmp_path):
    fit(learner(tmp_path, every=1, keep=3), Stop(9))
    assert len(list(tmp_path.glob('fit*')))==3
    (tmp_path/'.0123-fit000-00000001').mkdir()                                            # as a write that was killed leaves it
    same(fit(learner(tmp_path, every=1, keep=3)), whole)
    assert [o.name[-4:] for o in tmp_path.glob('fit*')]==['-end']
    assert {o.suffix for o in tmp_path.rglob('*') if o.is_file()}=={'.json','.safetensors'}

class Count(Callback):
    "A user's callback with state of its own"
    def before_fit(self): self.n,self.last = 0,None
    def after_batch(self):
        if self.training: self.n,self.last = self.n+1,self.loss.detach().clone()
    def state_dict(self): return {'n':self.n, 'last':self.last}
    def load_state_dict(self, state): self.n,self.last = state['n'],state['last']

def test_callbacks_with_state(tmp_path):
    fit(learner(tmp_path), Stop(9), cbs=[Count()])
    count = Count()
    fit(learner(tmp_path), cbs=[count])
    other = Count()
    fit(learner(tmp_path/'b'), cbs=[other])
    assert count.n==other.n and torch.equal(count.last, other.last)

def test_auxiliary_tasks_continue_with_their_next_batch(tmp_path):
    def new(d):
        set_seed(1)
        dls,others = (classifier_dls(tiny_df(), tiny_tok(), bs=bs) for bs in (8,12))
        return classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), cbs=[AuxiliaryTasks({'again':others}), Resume(tmp_path/d, every=2)])
    fit(new('a'), Stop(9))
    same(fit(new('a')), fit(new('b')))

def test_lookahead_is_refused(tmp_path):
    learn = learner(tmp_path)
    learn.opt_func = ranger
    with pytest.raises(ValueError, match='does not support `Lookahead`'): fit(learn)
