"A run that was killed anywhere ends as the one that was not, bit by bit"
import json, logging, os, random, signal, subprocess, sys, time
from pathlib import Path
import pytest

script = '''
import sys, json, hashlib, logging, time, warnings
warnings.filterwarnings('ignore')
logging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')
import torch, numpy as np
import fastai.callback.schedule
from fastai.basics import defaults, Callback, OptimWrapper
from fastai.callback.progress import ProgressCallback
from fastai.callback.tracker import EarlyStoppingCallback
from fastai.callback.training import GradientClip
from fastai.optimizer import Adam
from fastai.torch_core import set_seed
from functools import partial
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]
from fastformers.accumulate import TokenAccumulation
from fastformers.data import lm_dls, classifier_dls
from fastformers.learner import lm_learner, classifier_learner
from fastformers.resume import Resume
from fastformers.schedules import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
root,out = sys.argv[1:3]
class Slow(Callback): # steps, of training and of validation, that can be hit
    order = 2000
    def after_batch(self): time.sleep(.01)
df,tok,arch,res = tiny_df(),tiny_tok(),tiny_arch('bert', num_hidden_layers=2),{}
def note(learn, name):
    h = hashlib.sha256()
    for v in learn.model.state_dict().values(): h.update(v.numpy().tobytes())
    state = learn.opt.opt.state if isinstance(learn.opt, OptimWrapper) else learn.opt.state
    if name!='unfreeze 0': # where a fit is over and another follows, its optimizer is in the other's checkpoints
        for p in (p for ps in learn.opt.param_lists for p in ps):
            for k,v in sorted(state[p].items()): h.update(k.encode()); h.update(v.numpy().tobytes() if hasattr(v,'numpy') else str(v).encode())
    rec = learn.recorder
    res[name] = [h.hexdigest(), [float(o) for o in rec.losses], [list(o) for o in rec.values], [np.asarray(o).tolist() for o in rec.lrs], [int(o) for o in rec.iters],
                 [[float(h[k]) for k in ('lr','mom','wd')] for h in learn.opt.hypers], [p.requires_grad for p in learn.model.parameters()],
                 list(learn.validate()), float(torch.rand(())), float(np.random.rand())]
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

def start(tmp, ckpt, out):
    (tmp/'run.py').write_text(script)
    return subprocess.Popen([sys.executable, tmp/'run.py', tmp/ckpt, tmp/f'{out}.json'], stdout=subprocess.DEVNULL, stderr=open(tmp/f'{out}.log','a'), env={**os.environ, 'OMP_NUM_THREADS':'1'})

def finish(tmp, ckpt, out):
    p = start(tmp, ckpt, out)
    assert p.wait(600)==0, (tmp/f'{out}.log').read_text()[-2000:]
    return json.loads((tmp/f'{out}.json').read_text())

def kill(tmp, name, n, extra):
    "Start, wait until `n` more checkpoints than before were seen in `name` and `extra` seconds, then SIGKILL"
    p,seen = start(tmp, 'ckpt', 'cut'),{o.name for o in (tmp/'ckpt'/name).glob('fit*')}
    old,end = len(seen),time.time()+300
    while p.poll() is None and time.time()<end and len(seen)<old+n:
        seen |= {o.name for o in (tmp/'ckpt'/name).glob('fit*')}
        time.sleep(.002)
    time.sleep(extra)
    assert p.poll() is None, (tmp/'cut.log').read_text()[-2000:]
    p.send_signal(signal.SIGKILL); p.wait()

def test_killed_runs_end_as_the_whole_one(tmp_path):
    whole,rng = finish(tmp_path, 'whole', 'whole'),random.Random()
    for name in ('one_cycle','one_cycle','schedule','accumulate','torch','unfreeze'): kill(tmp_path, name, rng.randint(1,4), rng.random()*.08)
    cut = finish(tmp_path, 'ckpt', 'cut')
    log = (tmp_path/'cut.log').read_text()
    assert log.count('continues after')>=3 and 'was finished before' in log
    for k in whole: assert cut[k]==whole[k], k
    assert finish(tmp_path, 'ckpt', 'cut')==whole                                      # all fits are over
