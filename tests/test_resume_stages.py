"Stages and runs that were killed end as those that were not, bit by bit; a corpus on disk is pretrained on as one in memory"
import json, os, subprocess, sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
import pytest
from fastai.basics import Callback
from safetensors.torch import load_file
from transformers import AutoModel
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import Schedule, ScheduleRunner, in_fit
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.store import TokenStore
from fastformers.ulmfit.recipe import Recipe
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm

repo = Path(__file__).parent.parent

driver = '''
import json, os, signal, sys, warnings
from functools import partial
warnings.filterwarnings('ignore')
from fastai.basics import Callback, defaults
from fastai.callback.progress import ProgressCallback
import fastformers.callback.compute, fastformers.ulmfit.stage
from fastformers.callback.resume import Resume
from fastformers.testing import tiny_df
from fastformers.ulmfit.recipe import read_recipe
from fastformers.ulmfit.run import ulmfit
fastformers.ulmfit.stage.Resume = type('Often', (Resume,), dict(__init__=lambda self,path: Resume.__init__(self, path, every=3)))
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]

def kill_at(stage, batch):
    class Kill(Callback):
        order = 2000
        def after_batch(self):
            path = next(o.path for o in self.learn.cbs if isinstance(o, Resume))
            if self.training and path.name==stage and self.train_iter==batch: os.kill(os.getpid(), signal.SIGKILL)
    defaults.callbacks.append(Kill)

for ini,path,kill in json.loads(sys.argv[1]):
    if pid := os.fork():
        status = os.waitpid(pid, 0)[1]
        assert status==(9 if kill else 0), (path, kill, status)
        continue
    try:
        if kill: kill_at(*kill)
        ulmfit(tiny_df(), test=tiny_df()[:9], recipe=read_recipe(ini), path=path, resume=True)
        os._exit(0)
    except BaseException: sys.excepthook(*sys.exc_info()); os._exit(1)
'''

def same(a, b):
    "Are all tensors of the stages in `a` those in `b`?"
    files = sorted(o.relative_to(a) for o in a.rglob('*.safetensors'))
    assert files and files==sorted(o.relative_to(b) for o in b.rglob('*.safetensors'))
    for f in files:
        x,y = load_file(a/f),load_file(b/f)
        assert x.keys()==y.keys() and all((x[k]==y[k]).all() for k in x), f

def facts(path):
    "What a report says, without what another day changes"
    r = json.loads((path/'report.json').read_text())
    return {**r, 'stages':[{k:v for k,v in o.items() if k not in ('seconds','price','answers')} for o in r['stages']]}

@pytest.fixture(scope='module')
def start(tmp_path_factory):
    d = tmp_path_factory.mktemp('start')
    AutoModel.from_config(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(d); tiny_tok('bert').save_pretrained(d)
    return d

@pytest.mark.parametrize('which', [pytest.param('first', marks=pytest.mark.slow), 'second'])
def test_a_training_with_unlabelled_texts_that_stopped_ends_as_the_whole_one(start, tmp_path, which):
    class Accident(Callback):
        order,outside = 2000,True
        def after_batch(self):
            path = next(o.path for o in self.learn.cbs if isinstance(o, Resume))
            if self.training and self.train_iter==5 and (path.name=='first')==(which=='first'): raise KeyboardInterrupt
    def fit(path, **kwargs):
        more = [f'{o} {word}' for o in tiny_df().text for word in ('again','and','film','well','good')]
        return fine_tune_classifier(tiny_df(), start, path, unlabelled=more, epochs=2, bs=8, precision='fp32', **kwargs)
    assert any('unlabelled texts' in o for o in fit(tmp_path/'whole').chosen)
    with pytest.raises(KeyboardInterrupt): fit(tmp_path/'stopped', resume=tmp_path/'checkpoints', cbs=Accident())
    fit(tmp_path/'stopped', resume=tmp_path/'checkpoints')
    same(tmp_path/'whole', tmp_path/'stopped')

@pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are killed')
def test_a_run_killed_in_each_stage_ends_as_the_whole_one(start, tmp_path):
    d = tmp_path
    r = Recipe().replace(run=dict(seeds=(1,2)), model=dict(arch=str(start), precision='fp32'), lm=dict(epochs=1.3, lr=3e-3, bs=4, seq_len=32),
                         classifier=dict(epochs=2., lr=3e-3, bs=8, schedule='gradual_unfreeze', max_len=24))
    (d/'a.ini').write_text(r.to_ini())
    legs = [('whole',None), ('cut',['target_lm',7]), ('cut',['classifier',5]), ('cut',['classifier',11]), ('cut',['classifier_general_seed2',10]), ('cut',None)]
    args = json.dumps([(d/'a.ini', d/o, kill) for o,kill in legs], default=str)
    res = subprocess.run([sys.executable, '-c', driver, args], cwd=repo, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS':'1'})
    assert res.returncode==0, res.stderr[-3000:]
    same(d/'cut', d/'whole')
    assert facts(d/'cut')==facts(d/'whole') and not (d/'cut'/'checkpoints').exists()

class Stop(Callback):
    order = 2000
    def after_batch(self):
        if self.training and self.train_iter==6: raise KeyboardInterrupt

@pytest.mark.exact
@pytest.mark.parametrize('stage', ['pretrain','adapt','similarity','classify'])
def test_a_stage_goes_on_after_an_interrupt(start, tmp_path, stage):
    df = tiny_df()
    f = {'pretrain':partial(pretrain_lm, df, vocab_sz=500, size=1, seq_len=32), 'adapt':partial(fine_tune_lm, df, start, seq_len=32),
         'similarity':partial(fine_tune_lm, df, start, objective='word_similarity'),
         'classify':partial(fine_tune_classifier, df, start, adapters='bitfit', aux_lm=.5)}[stage]
    f = partial(f, bs=8, epochs=2, precision='fp32')
    with pytest.raises(KeyboardInterrupt): f(path=tmp_path/'a', resume=Resume(tmp_path/'ckpt', every=4), cbs=Stop())
    assert not (tmp_path/'a').exists()
    with pytest.raises(ValueError, match='another run'): f(path=tmp_path/'a', resume=tmp_path/'ckpt', lr=3e-3)
    f(path=tmp_path/'a', resume=tmp_path/'ckpt'); f(path=tmp_path/'b')
    same(tmp_path/'a', tmp_path/'b')
    if stage=='pretrain': assert (tmp_path/'a'/'tokenizer.json').read_text()==(tmp_path/'b'/'tokenizer.json').read_text()

class Clock(Callback):
    "Seconds from the beginning of a fit to its last batch, and to the last with frozen groups; it is stopped after `stop` seconds"
    order = ScheduleRunner.order-1
    def __init__(self, time, stop=99): self.time,self.stop = time,stop
    def before_fit(self):
        if in_fit(self): self.start,self.frozen,self.lrs = self.time.now,0.,[]
    def after_pred(self): self.time.now += .002 if not self.training else .01 if self.train_iter<100 else .06 # the machine becomes slow
    def after_batch(self):
        if not self.training: return
        self.seconds = self.time.now-self.start
        self.lrs.append(self.opt.hypers[-1]['lr'])
        if self.opt.frozen_idx: self.frozen = self.seconds
        if self.seconds>self.stop: raise KeyboardInterrupt

def test_a_stage_with_minutes_ends_in_time_and_counts_those_of_before(start, tmp_path, monkeypatch):
    "Six seconds in all, three quarters of them for the second step of the schedule, although the machine becomes slow and the stage is stopped"
    clock = SimpleNamespace(now=0.)
    monkeypatch.setattr('fastformers.callback.schedule.time', SimpleNamespace(monotonic=lambda: clock.now))
    kwargs = dict(bs=8, lr=1e-3, minutes=.1, precision='fp32', schedule=lambda n: Schedule([[0.]*(n-1)+[1.], [1.]*n], [1.,3.]))
    f = partial(fine_tune_classifier, tiny_df(), start, resume=Resume(tmp_path/'c', every=3), **kwargs)
    whole,cut,rest = Clock(clock),Clock(clock, stop=2.),Clock(clock)
    a = fine_tune_classifier(tiny_df(), start, cbs=whole, **kwargs)
    with pytest.raises(KeyboardInterrupt): f(cbs=cut)
    with pytest.raises(ValueError, match='another run.*minutes was 0.1, is 0.2'): f(minutes=.2)
    b = f(cbs=rest)
    assert 5.9<whole.seconds<6.1 and 5.9<cut.seconds+rest.seconds<6.3, (whole.seconds, cut.seconds, rest.seconds) # and what came after the last checkpoint
    assert whole.frozen==pytest.approx(1.5, abs=.1) and cut.frozen==pytest.approx(1.5, abs=.1) and not rest.frozen
    for o,cb in ((a,whole), (b,rest)):
        assert cb.lrs[-1]<1e-3/20 and o.schedule.total==pytest.approx(len(o.losses)/len(o.learner.dls.train))

@pytest.mark.parametrize('packing', ['full-sentences','doc-sentences','segment-pair'])
def test_pretraining_from_a_store_is_that_from_its_texts(tmp_path, packing):
    texts,tok = ['', '🎬'*300, 'x '*5000, *tiny_df().text],tiny_tok('bert')
    store = TokenStore.build(texts, tok, tmp_path/'store')
    kwargs = dict(tok=tok, config=tiny_arch('bert', num_hidden_layers=1), packing=packing, bs=8, seq_len=32, epochs=.5, valid_pct=.2)
    memory,stored = pretrain_lm(texts, tmp_path/'a', **kwargs),pretrain_lm(store, tmp_path/'b', **kwargs)
    same(tmp_path/'a', tmp_path/'b')
    assert stored.data==memory.data and stored.metrics==memory.metrics
    with pytest.raises(ValueError, match="pass its tokenizer as `tok`"): pretrain_lm(store, **{**kwargs, 'tok':None})
