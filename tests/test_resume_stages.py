"Stages, and runs of all of them, that were killed end as those that were not, bit by bit; a corpus on disk is pretrained on as one in memory"
import json, os, shutil, subprocess, sys
from functools import partial
from pathlib import Path
import pytest
from fastai.callback.core import Callback
from safetensors.torch import load_file
from transformers import AutoModel
from fastformers.ulmfit import stage as fine_tuning
from fastformers.cli import main
from fastformers.ulmfit.recipe import Recipe
from fastformers.inference.stage_json import read_stage
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are killed')
repo = Path(__file__).parent.parent

driver = '''
import json, os, random, signal, sys, warnings
from functools import partial
warnings.filterwarnings('ignore')
import torch
from fastai.basics import Callback, defaults
from fastai.callback.progress import ProgressCallback
import fastformers.callback.freeze, fastformers.ulmfit.stage, fastformers.callback.resume, fastformers.ulmfit.run
from fastformers.cli import main
from fastformers.ulmfit.recipe import read_data
from fastformers.ulmfit.recipe import read_recipe
from fastformers.callback.resume import Resume
from fastformers.testing import tiny_df
fastformers.callback.compute.bf16_speedup = lambda: .5                          # not a matter of how busy the machine is
often = partial(Resume, every=3)                                        # not every ten minutes
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]

def die(): os.kill(os.getpid(), signal.SIGKILL)
def kill_at(stage, when):
    "Be killed at batch `when` of `stage`, or after its training before anything else is done"
    class Kill(Callback):
        order,outside = 2000,True
        def after_batch(self):
            if self.training and self.learn.resume.path.name==stage and self.train_iter==when: die()
    class Last(Resume):
        def settle(self):
            if self.path.name==stage: die()
            super().settle()
    if when=='end': fastformers.ulmfit.run.Resume = partial(Last, every=3)
    else: defaults.callbacks.append(Kill)

def run(ini, path, **kwargs):
    recipe = read_recipe(ini)
    df,unlabelled,_,test = read_data(recipe)
    fastformers.ulmfit.run.ulmfit(df, unlabelled, test, recipe=recipe, path=path, seeds=recipe.run.seed, **kwargs)
def pretrain(path, ckpt, again=False):
    def never(*args, **kwargs): raise AssertionError('a tokenizer is trained again')
    if again: fastformers.ulmfit.stage.train_tokenizer = never
    small = lambda tok: fastformers.ulmfit.stage.small_config(tok, layers=1, width=64)
    fastformers.ulmfit.stage.pretrain_lm(tiny_df(), path, vocab_sz=500, config=small, bs=8, seq_len=32, epochs=3, resume=ckpt and often(ckpt))

for name,args,kwargs,kill,epochs in json.loads(sys.argv[1]):
    if pid := os.fork():
        status = os.waitpid(pid, 0)[1]
        assert status==(9 if kill else 0), (name, args, kill, status)
        continue
    try:
        random.seed(); torch.seed()
        fastformers.ulmfit.run.Resume = fastformers.callback.resume.Resume = often
        fastformers.ulmfit.stage.epochs_for = lambda learn, minutes: epochs  # another number whenever it is measured
        if kill: kill_at(*kill)
        res = dict(run=run, pretrain=pretrain, cli=main)[name](*args, **kwargs)
        os._exit(0 if not res else 1)
    except BaseException: sys.excepthook(*sys.exc_info()); os._exit(1)
'''

def legs(*each):
    "One process after another: (what, arguments, keywords, where it is killed, epochs that a budget of time buys)"
    r = subprocess.run([sys.executable, '-c', driver, json.dumps(each, default=str)], cwd=repo, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS':'1'})
    assert r.returncode==0, r.stderr[-3000:]
    return r.stderr

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
    "A run that nothing disturbed, and its copies, killed several times"
    d = tmp_path_factory.mktemp('resume')
    AutoModel.from_config(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    tiny_df().to_csv(d/'mine.csv', index=False); tiny_df()[:9].to_csv(d/'test.csv', index=False)
    tiny_df().assign(text=tiny_df().text+'!').to_csv(d/'mended.csv', index=False)
    r = Recipe().replace(run=dict(output='whole', seed='1, 2'), data=dict(source='mine.csv', test='test.csv'), model=dict(arch='./arch', max_len=24),
                         lm=dict(minutes=1, lr=3e-3, bs=4, seq_len=32), classifier=dict(epochs=2, lr=3e-3, bs=8, schedule='gradual_unfreeze'))
    for o in ('whole','cli'): (d/f'{o}.ini').write_text(r.replace(run=dict(output=o)).to_ini())
    legs(['cli', [['run', d/'whole.ini']], {}, None, 1.3],
         ['run', [d/'whole.ini', d/'cut'], {}, ['target_lm', 7], 1.3],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, ['target_lm', 'end'], 2.],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, ['classifier', 5], 2.1],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, ['classifier', 11], 2.2],
         ['run', [d/'whole.ini', d/'cut'], {'resume':True}, None, 2.3],
         ['cli', [['run', d/'cli.ini']], {}, ['classifier_without_lm_seed2', 10], 1.3],
         ['pretrain', [d/'general', None], {}, None, 0],
         ['pretrain', [d/'general2', d/'ckpt'], {}, ['ckpt', 10], 0],
         ['pretrain', [d/'general2', d/'ckpt'], {'again':True}, None, 0])
    return d

def test_a_run_killed_in_each_stage_and_between_ends_as_the_whole_one(here):
    same(here/'cut', here/'whole')
    assert facts(here/'cut')==facts(here/'whole')
    assert not (here/'cut'/'checkpoints').exists() and not (here/'whole'/'checkpoints').exists()

def test_a_budget_of_time_is_measured_once(here):
    assert read_stage(here/'cut'/'target_lm')['epochs']==read_stage(here/'whole'/'target_lm')['epochs']==pytest.approx(1.3)

def test_seconds_of_all_processes_count(here):
    seconds = [json.loads((here/o/'report.json').read_text())['stages'][0]['seconds'] for o in ('cut','whole')]
    assert seconds[0]>.5*seconds[1]

def test_a_tokenizer_is_trained_once(here):
    same(here/'general2', here/'general')
    assert (here/'general2'/'tokenizer.json').read_text()==(here/'general'/'tokenizer.json').read_text()

def test_another_run_is_refused_and_changes_nothing(here, capsys):
    before = {o:o.read_bytes() for o in (here/'cli').rglob('*') if o.is_file()}
    assert main(['run', str(here/'cli.ini')])==2 and 'go on with --resume, or begin anew with --force' in capsys.readouterr().err
    ini = (here/'cli.ini').read_text()
    for new,words in ((ini.replace('lr = 0.003', 'lr = 0.004'), '[lm] lr was 0.003, is 0.004; [classifier] lr was 0.003, is 0.004'), (ini.replace('seed = 1, 2', 'seed = 3'), 'seeds was [1, 2], is [3]'),
                      (ini.replace('test = test.csv', 'test ='), 'test was 9 rows'), (ini.replace('mine.csv', 'mended.csv'), 'labelled was 60 rows')):
        assert new!=ini
        (here/'other.ini').write_text(new)
        assert main(['run', '--resume', str(here/'other.ini')])==2 and words in (err := capsys.readouterr().err), err
    assert {o:o.read_bytes() for o in (here/'cli').rglob('*') if o.is_file()}==before

def test_of_finished_stages_no_optimizer_is_kept(here):
    kept = here/'cli'/'checkpoints'
    assert {o.name for o in kept.iterdir()}=={'run.json','target_lm','classifier','classifier_without_lm','classifier_seed2','classifier_without_lm_seed2'}
    for o in ('target_lm','classifier','classifier_without_lm','classifier_seed2'):
        (end,) = kept.glob(f'{o}/fit*')
        assert end.name.endswith('-end') and {f.name for f in end.iterdir()}=={'weights.safetensors','state.json','sums.json'}
    assert len(list(kept.glob('classifier_without_lm_seed2/fit*')))==2

def test_the_command_goes_on(here):
    "By the entry point itself; its precision is that of the run it goes on with"
    copy = here/'again'; shutil.copytree(here/'cli', copy)
    args = [sys.executable, '-m', 'fastformers.cli', 'run', '--resume', here/'cli.ini', '--output', copy]
    r = subprocess.run(args, cwd=repo, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS':'1'})
    assert r.returncode==0, r.stderr
    assert 'continues after epoch 1, batch' in r.stderr and r.stderr.count('was finished before')==4 and '| stage' in r.stdout
    same(copy, here/'whole')
    assert facts(copy)==facts(here/'whole') and not (copy/'checkpoints').exists()
    assert '1.3 epochs' in (copy/'settings.ini').read_text() # what the budget was

class Stop(Callback):
    order,outside = 2000,True
    def after_batch(self):
        if self.training and self.train_iter==6: raise KeyboardInterrupt

@pytest.fixture
def stage(here, tmp_path, monkeypatch):
    "The command of a stage that is interrupted, when asked for, after a checkpoint"
    from fastai.basics import defaults
    from fastformers.callback import resume
    monkeypatch.setattr(resume, 'Resume', partial(resume.Resume, every=4))
    def run(*args, stop=False):
        with monkeypatch.context() as m:
            if stop: m.setattr(defaults, 'callbacks', [*defaults.callbacks, Stop])
            return main([*map(str, args)])
    return run

@pytest.mark.parametrize('verb', ['pretrain','adapt','classify'])
def test_the_command_of_a_stage_goes_on(here, tmp_path, stage, capsys, verb):
    args = [verb, here/'mine.csv', '--bs', 8, '--epochs', 2, *(['--arch', here/'arch'] if verb!='pretrain' else ['--vocab-sz', 500, '--layers', 1, '--width', 64, '--seq-len', 32])]
    here_,whole = (tmp_path/'deep'/'a b'),tmp_path/'whole'
    assert stage(*args, '--output', here_, stop=True)==130
    err = capsys.readouterr().err
    assert f"to go on: fastformers {verb} --resume " in err and f"--output '{here_}'" in err
    assert [o.name for o in (tmp_path/'deep').iterdir()]==['a b.checkpoints']
    assert stage(*args, '--output', here_)==2 and '--resume' in capsys.readouterr().err
    assert stage(*args, '--output', here_, '--resume', '--lr', '2e-3')==2 and 'lr was' in capsys.readouterr().err
    assert stage(*args, '--output', here_, '--resume')==0==stage(*args, '--output', whole, '--resume') # the second: nothing to resume
    assert 'nothing to resume' in capsys.readouterr().err
    same(here_, whole)
    assert sorted(o.name for o in tmp_path.rglob('*.checkpoints'))==[]
    assert stage(*args, '--output', here_, stop=True, *[])==2 and '--force' in capsys.readouterr().err
    assert stage(*args, '--output', here_, '--force', stop=True)==130 and stage(*args, '--output', here_, '--force')==0
    same(here_, whole)
    assert sorted(o.name for o in tmp_path.rglob('*.checkpoints'))==[]

def test_a_full_disk_does_not_stop_a_command_for_its_checkpoints(here, tmp_path, stage, monkeypatch, capsys):
    from fastformers.callback import resume
    def full(path, *args): raise OSError(f"cannot write checkpoint {path}: No space left on device")
    monkeypatch.setattr(resume, 'write_checkpoint', full)
    assert stage('classify', here/'mine.csv', '--arch', here/'arch', '--output', tmp_path/'c', '--bs', 8, '--epochs', 2)==0
    assert capsys.readouterr().err.count('training goes on meanwhile')>=2 and [o.name for o in tmp_path.iterdir()]==['c']

@pytest.mark.parametrize('packing', ['full-sentences','doc-sentences','segment-pair'])
def test_pretraining_from_a_store_is_that_from_its_texts(tmp_path, packing):
    texts,tok = ['', '🎬'*300, 'x '*5000, *tiny_df().text],tiny_tok('bert')
    store = TokenStore.build(texts, tok, tmp_path/'store')
    kwargs = dict(tok=tok, config=tiny_arch('bert', num_hidden_layers=1), packing=packing, bs=8, seq_len=32, epochs=.5)
    memory = fine_tuning.pretrain_lm(texts, tmp_path/'a', **kwargs)
    stored = fine_tuning.pretrain_lm(store, tmp_path/'b', **kwargs)
    same(tmp_path/'a', tmp_path/'b')
    assert stored.data==memory.data and stored.metrics==memory.metrics
    stored.learner.save_encoder(tmp_path/'c')
    shorter = TokenStore.build(texts[:-1], tok, tmp_path/'shorter')
    other = fine_tuning.fine_tune_lm(shorter, tmp_path/'a', tmp_path/'d', bs=8, seq_len=32, epochs=.5)
    assert len({read_stage(tmp_path/o)['data'] for o in 'bcd'})==2 and other.parent.endswith('(general LM)')

def test_a_store_on_the_command_line(here, tmp_path, capsys):
    TokenStore.build(tiny_df().text.tolist(), tiny_tok('bert'), tmp_path/'store')
    tiny_tok('roberta').save_pretrained(tmp_path/'other')
    quick = ['--bs', '8', '--seq-len', '32', '--epochs', '.5', '--output', str(tmp_path/'out')]
    for args,words in ((['pretrain', tmp_path/'store'], 'pass as --tok'), (['pretrain', tmp_path/'store', '--tok', tmp_path/'other'], 'another tokenizer'), (['adapt', tmp_path/'store', here/'mine.csv'], 'read alone'),
                       (['adapt', tmp_path/'store', '--valid-col', 'x'], 'no columns'), (['adapt', tmp_path/'store', '--encoding', 'cp1252'], 'no format')):
        assert main([*map(str, args), *quick])==2 and words in (err := capsys.readouterr().err), err
    assert sorted(o.name for o in tmp_path.iterdir())==['other','store']
    assert main(['adapt', str(tmp_path/'store'), '--arch', str(here/'arch'), *quick])==0
    assert read_stage(tmp_path/'out')['stage']=='target LM'
