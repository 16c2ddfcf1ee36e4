"Runs of all stages, and a stage with a tokenizer of its own, that were killed end as those that were not, bit for bit"
import json, os, subprocess, sys
from pathlib import Path
import pytest
from safetensors.torch import load_file
from transformers import AutoModel
from fastformers.inference.stage_json import read_stage
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.ulmfit.run import ulmfit
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are killed')
repo = Path(__file__).parent.parent

driver = """
import json, os, random, signal, sys, warnings
warnings.filterwarnings('ignore')
import torch
from fastcore.foundation import first
from fastai.basics import Callback, defaults
from fastai.callback.progress import ProgressCallback
import fastformers.callback.compute, fastformers.ulmfit.run, fastformers.ulmfit.stage as stages
from fastformers.callback.resume import Resume
from fastformers.ulmfit.recipe import read_recipe
from fastformers.testing import tiny_df
class Often(Resume):
    def __init__(self, path): super().__init__(path, every=3)              # not every ten minutes
stages.Resume = Often
stages.bf16_speedup = fastformers.callback.compute.bf16_speedup = lambda: .5 # not a matter of how busy the machine is
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]

def kill_at(stage, when):
    "Be killed at batch `when` of `stage`, or after its training before anything else is done"
    class Kill(Callback):
        order = 2000
        def _here(self): return first(o for o in self.learn.cbs if isinstance(o, Resume)).path.name==stage
        def after_batch(self):
            if self.training and self._here() and self.train_iter==when: os.kill(os.getpid(), signal.SIGKILL)
        def after_fit(self):
            if when=='end' and not self.learn.lock.locked() and self._here(): os.kill(os.getpid(), signal.SIGKILL)
    defaults.callbacks.append(Kill)

def run(ini, path, **kwargs): fastformers.ulmfit.run.ulmfit(tiny_df(), test=tiny_df()[:9], recipe=read_recipe(ini), path=path, **kwargs)
def pretrain(path, ckpt, again=False):
    def never(*args, **kwargs): raise AssertionError('a tokenizer is trained again')
    if again: stages.train_tokenizer = never
    stages.pretrain_lm(tiny_df(), path, vocab_sz=500, layers=1, width=64, bs=8, seq_len=32, epochs=3, resume=ckpt)

for name,args,kwargs,kill,epochs in json.loads(sys.argv[1]):
    if pid := os.fork():
        status = os.waitpid(pid, 0)[1]
        assert status==(9 if kill else 0), (name, args, kill, status)
        continue
    try:
        random.seed(); torch.seed()
        stages.epochs_for = lambda learn, minutes: epochs                  # another number whenever it is measured
        if kill: kill_at(*kill)
        dict(run=run, pretrain=pretrain)[name](*args, **kwargs)
        os._exit(0)
    except BaseException: sys.excepthook(*sys.exc_info()); os._exit(1)
"""

def legs(*each):
    "One process after another: (what, arguments, keywords, where it is killed, epochs that a budget of time buys)"
    args = [sys.executable, '-c', driver, json.dumps(each, default=str)]
    r = subprocess.run(args, cwd=repo, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS':'1'})
    assert r.returncode==0, r.stderr[-3000:]

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
    return {**r, 'stages':[{k:v for k,v in o.items() if k!='seconds'} for o in r['stages']]}

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    "A run without interruption, and its copies, killed several times"
    d = tmp_path_factory.mktemp('resume')
    AutoModel.from_config(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    r = Recipe().replace(run=dict(seeds=(1,2)), model=dict(arch='./arch'), lm=dict(minutes=1., lr=3e-3, bs=4, seq_len=32),
                         classifier=dict(epochs=2., lr=3e-3, bs=8, schedule='gradual_unfreeze', max_len=24))
    (d/'whole.ini').write_text(r.to_ini())
    legs(['run', [d/'whole.ini', d/'whole'], {}, None, 1.3],
         ['run', [d/'whole.ini', d/'cut'], {}, ['target_lm', 7], 1.3],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, ['target_lm', 'end'], 2.],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, ['classifier', 5], 2.1],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, None, 2.3],
         ['run', [d/'whole.ini', d/'stopped'], {}, ['classifier', 5], 1.3],
         ['pretrain', [d/'general', None], {}, None, 0],
         ['pretrain', [d/'general2', d/'ckpt'], {}, ['ckpt', 10], 0],
         ['pretrain', [d/'general2', d/'ckpt'], {'again':True}, None, 0])
    return d

def test_a_run_killed_in_each_stage_and_between_ends_as_the_whole_one(here):
    same(here/'cut', here/'whole')
    assert facts(here/'cut')==facts(here/'whole')
    assert not (here/'cut'/'checkpoints').exists() and not (here/'whole'/'checkpoints').exists()

def test_a_budget_of_time_is_measured_once_and_seconds_of_all_processes_count(here):
    assert read_stage(here/'cut'/'target_lm')['epochs']==read_stage(here/'whole'/'target_lm')['epochs']==pytest.approx(1.3)
    seconds = [json.loads((here/o/'report.json').read_text())['stages'][0]['seconds'] for o in ('cut','whole')]
    assert seconds[0]>.5*seconds[1]

def test_a_tokenizer_is_trained_once(here):
    same(here/'general2', here/'general')
    assert (here/'general2'/'tokenizer.json').read_text()==(here/'general'/'tokenizer.json').read_text()

def test_another_run_is_refused_and_changes_nothing(here):
    before = {o:o.read_bytes() for o in (here/'stopped').rglob('*') if o.is_file()}
    r,df = read_recipe(here/'whole.ini'),tiny_df()
    def again(df=df, r=r, **kwargs): ulmfit(df, test=df[:9], recipe=r, path=here/'stopped', **kwargs)
    with pytest.raises(FileExistsError, match='go on with `resume=True`'): again()
    for kwargs,words in ((dict(r=r.replace(lm=dict(lr=4e-3))), r'lr was 0.003, is 0.004'), (dict(seeds=[3]), r'seeds was \[1, 2\], is \[3\]'),
                         (dict(df=df.assign(text=df.text+'!')), 'labelled was 60 rows')):
        with pytest.raises(ValueError, match=words): again(resume=True, **kwargs)
    assert {o:o.read_bytes() for o in (here/'stopped').rglob('*') if o.is_file()}==before
