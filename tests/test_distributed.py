"Two processes train as one does: weights, losses, metrics, accumulation, frozen layers, checkpoints, and what only the first writes"
import json, os, socket, subprocess, sys
from pathlib import Path
import pandas as pd, pytest, torch
from transformers import BertForSequenceClassification
from fastformers.cli import main
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

pytestmark = [pytest.mark.skipif(not hasattr(os, 'fork') or not torch.distributed.is_available(), reason='two processes talk by gloo'), pytest.mark.exact]
repo = Path(__file__).parent.parent

driver = '''
import logging, os, sys, traceback, warnings
warnings.filterwarnings('ignore')
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
import torch, torch.distributed as dist
from fastai.basics import Callback, CrossEntropyLossFlat, SGD, defaults
from fastai.callback.progress import ProgressCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.torch_core import set_seed
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.contrastive import Contrastive
from fastformers.callback.distil import Distil
from fastformers.callback.keep_vectors import KeepVectors
from fastformers.callback.regularize import L2SP
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.save import as_predictor
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.papers.uda import Consistency
from fastformers.testing import tiny_arch, tiny_df, tiny_tags, tiny_tok
from transformers import BertForMaskedLM
from fastformers.ulmfit.recipe import Recipe
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm
defaults.callbacks = [o for o in defaults.callbacks if o is not ProgressCallback]
root = Path(sys.argv[1])
logging.basicConfig(level=logging.INFO)
df = tiny_df()[:46]

def learner(kind, bs=8, cbs=None, drop_mult=0., **kwargs):
    set_seed(0)
    how = dict(drop_mult=drop_mult, precision='fp32', cbs=cbs, **kwargs)
    if kind in ('mlm','clm'):
        family,obj = dict(mlm=('bert',MLM), clm=('gpt2',CLM))[kind]
        tok = tiny_tok(family)
        return lm_learner(lm_dls(df, tok, obj(tok), seq_len=32, bs=bs, device='cpu'), tiny_arch(family, num_hidden_layers=1), **how)
    rows = tiny_tags() if kind=='tags' else df
    return classifier_learner(classifier_dls(rows, tiny_tok(), bs=bs, device='cpu'), tiny_arch('bert', num_hidden_layers=2), **how)

def rare(): return CrossEntropyLossFlat(weight=torch.tensor([.3,1.,3.])) # rows weigh differently in the loss

def result(learn):
    rec = learn.recorder
    return dict(weights={k:p.detach().clone() for k,p in learn.model.named_parameters()}, values=[[float(v) for v in o] for o in rec.values],
                losses=[float(o) for o in rec.losses], random=torch.rand(3))

def fit(kind, how=None, **kwargs):
    learn = learner(kind, **kwargs)
    with learn.no_bar():
        if how is None: learn.fit(2, 1e-3)
        else: learn.fit_schedule(gradual_unfreeze, 1e-3, epochs=how)
    return result(learn)

class Stop(Callback):
    "End training at batch `at`, in process `rank` or in all"
    order = 2000
    def __init__(self, at, rank=None): self.at,self.rank = at,rank
    def after_batch(self):
        if self.training and self.train_iter==self.at and self.rank in (None, int(os.environ.get('RANK', 0))): raise KeyboardInterrupt('stopped')

class Tick(Callback):
    "A clock that moves with each batch, in the second process twice as fast"
    def __init__(self): self.now,self.step = 0.,.01*(1+int(os.environ.get('RANK', 0)))
    def after_pred(self): self.now += self.step

def by_clock():
    tick = Tick()
    with mock.patch('fastformers.callback.schedule.time', SimpleNamespace(monotonic=lambda: tick.now)): return stage('clock', minutes=.01, cbs=[tick])

def stage(name, stop=None, resume=None, path=None, minutes=None, rank=None, cbs=None):
    "Stage 3, with dropout off; what it trained"
    cfg = tiny_arch('bert', num_hidden_layers=1)
    cfg.hidden_dropout_prob = cfg.attention_probs_dropout_prob = 0.
    how = dict(epochs=None if minutes else 2., minutes=minutes, lr=1e-3, bs=8, tok=tiny_tok(), schedule='gradual_unfreeze', head_init='random', drop_mult=0., precision='fp32', refit=False)
    res = fine_tune_classifier(df, cfg, path=path and root/path, resume=resume and Resume(root/resume, every=3), cbs=[Stop(stop, rank)] if stop else cbs, **how)
    return dict(weights={k:p.detach().clone() for k,p in res.learner.model.named_parameters()}, metrics=res.metrics, n=len(res.losses))

def lm_stages(path):
    "Stages 1 and 2, joined by directories that all processes read"
    a = pretrain_lm(df, root/path/'general', vocab_sz=500, size=1, seq_len=32, bs=8, epochs=1., precision='fp32')
    b = fine_tune_lm(df, root/path/'general', root/path/'target', seq_len=32, bs=8, epochs=1., drop_mult=0., precision='fp32')
    return dict(weights={f'{o.name} {k}':p.detach().clone() for o in (a,b) for k,p in o.learner.model.named_parameters()}, metrics=b.metrics, score=torch.tensor(b.score))

def whole_run(path):
    "A run of all stages with its report, and without a directory"
    how = dict(epochs=1., lr=1e-3, bs=8, drop_mult=0.)
    recipe = Recipe().replace(model=dict(arch=str(root/'arch'), precision='fp32'), lm=how|dict(seq_len=32), classifier=how|dict(max_len=24, head_init='random'))
    reports = [ulmfit(df, test=tiny_df()[46:], recipe=recipe, path=o) for o in (root/f'{path}_run', None)]
    return dict(metrics={f'{i} {s.name} {k}':float(v) for i,r in enumerate(reports) for s in r.stages for k,v in (s.metrics|s.test).items()},
                weights={k:p.detach().clone() for k,p in reports[1].learner.model.named_parameters()})

def refused(cb):
    try: fit('mlm', cbs=cb)
    except Exception as e: return str(e)

equal = dict(mlm=lambda: fit('mlm'), clm=lambda: fit('clm', opt_func=SGD), tags=lambda: fit('tags'), unfreeze=lambda: fit('classifier', 2.5),
    contrastive=lambda: fit('classifier', 2.5, cbs=Contrastive()), vectors=lambda: fit('mlm', cbs=KeepVectors(5.)),
    auxiliary=lambda: fit('classifier', 2.5, cbs=AuxiliaryLM(arch=tiny_arch('bert', num_hidden_layers=2)), loss_func=rare()),
    distil=lambda: fit('classifier', 2.5, cbs=Distil(as_predictor(learner('classifier'))), loss_func=rare()),
    unlabelled=lambda: fit('classifier', 2.5, cbs=Consistency([*df.text[:20]], confidence=.3), loss_func=rare()),
    windows=lambda: fit('classifier', 2.5, cbs=[TokenAccumulation(n_acc=20), L2SP(), GradientClip(.1)]),
    tokens=lambda: fit('mlm', cbs=TokenAccumulation(n_tokens=300), opt_func=SGD), stages=lambda: lm_stages('one' if alone else 'two'), stage=lambda: stage('whole'),
    run=lambda: whole_run('one' if alone else 'two'))
def similar():
    "Stage 2 by similarities within the texts of a batch, of which each process has its own"
    res = fine_tune_lm(df, root/'arch', objective='word_similarity', bs=8, epochs=1., precision='fp32')
    return dict(weights={k:p.detach().clone() for k,p in res.learner.model.named_parameters()})

more = dict(dropout=lambda: fit('mlm', drop_mult=1.), clock=by_clock, similar=similar,
    refused=lambda: [refused(GradientAccumulation(8)), refused(type('DistributedTrainer', (Callback,), {})())])
legs = [('one', 1, equal), ('two', 2, equal|more),
    ('stop2', 2, dict(stage=lambda: stage('a', stop=8, resume='c2'))), ('2to1', 1, dict(stage=lambda: stage('a', resume='c2', path='2to1'))),
    ('stop1', 1, dict(stage=lambda: stage('a', stop=8, resume='c1'))), ('1to2', 2, dict(stage=lambda: stage('a', resume='c1', path='1to2'))),
    ('dies', 2, dict(stage=lambda: stage('a', stop=5, rank=1)))]

def child(name, rank, world, jobs):
    "Run `jobs` as process `rank` of `world`, and keep what they return or raise"
    global alone
    alone = world==1
    if not alone:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group('gloo', init_method=f'file://{root}/{name}.store', rank=rank, world_size=world, timeout=timedelta(hours=1))
    res = {}
    for k,f in jobs.items():
        try: res[k] = f()
        except BaseException as e:
            res[k] = f'{type(e).__name__}: {e}'
            print(name, rank, k, traceback.format_exc(), file=sys.stderr)
            break
    torch.save(res, root/f'{name}-{rank}.pt')

BertForMaskedLM(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(root/'arch'); tiny_tok('bert').save_pretrained(root/'arch')
for name,world,jobs in legs:
    pids = []
    for rank in range(world):
        if pid := os.fork(): pids.append(pid)
        else:
            try: child(name, rank, world, jobs)
            finally: os._exit(0)
    for o in pids: os.waitpid(o, 0)
'''

@pytest.fixture(scope='module')
def done(tmp_path_factory):
    "{name: what each process returned}, and the directory"
    d = tmp_path_factory.mktemp('processes')
    env = {k:v for k,v in os.environ.items() if k not in ('RANK','WORLD_SIZE')} | dict(OMP_NUM_THREADS='1', FASTFORMERS_PRECISION='fp32')
    res = subprocess.run([sys.executable, '-c', driver, d], cwd=repo, capture_output=True, text=True, env=env)
    assert res.returncode==0, res.stderr[-3000:]
    out = {o:[torch.load(d/f'{o}-{r}.pt') for r in range(2) if (d/f'{o}-{r}.pt').exists()] for o in 'one two stop2 2to1 stop1 1to2 dies'.split()}
    return out | dict(dir=d, stderr=res.stderr)

def gap(a, b):
    assert isinstance(a, dict) and isinstance(b, dict), (a, b)
    assert a['weights'].keys()==b['weights'].keys()
    return max(float((v-b['weights'][k]).abs().max()) for k,v in a['weights'].items())

@pytest.mark.parametrize('job', 'mlm clm tags unfreeze contrastive vectors auxiliary distil unlabelled windows tokens stages stage run'.split())
def test_two_processes_reach_the_weights_of_one(done, job):
    one,(a,b) = done['one'][0][job],(o[job] for o in done['two'])
    assert gap(one, a)<1e-5 and gap(a, b)==0
    for k in ('values','losses'):
        if k in one: assert torch.allclose(torch.tensor(one[k]), torch.tensor(a[k]), atol=1e-5) and a[k]==b[k]
    if 'metrics' in one: assert one['metrics']==pytest.approx(a['metrics'], rel=1e-5, abs=1e-5) and a['metrics']==b['metrics']
    if 'random' in one: assert torch.equal(a['random'], b['random'])                 # what follows begins alike

def test_the_first_process_writes(done):
    d = done['dir']
    for a,b in (('one','two'), ('one_run','two_run')): assert sorted(o.relative_to(d/a) for o in (d/a).rglob('*'))==sorted(o.relative_to(d/b) for o in (d/b).rglob('*'))
    assert not [o for o in d.rglob('.*')]                                              # no leftovers

def test_dropout_differs_between_processes_and_ends_alike(done):
    (a,b),one = (o['dropout'] for o in done['two']),done['one'][0]['mlm']
    assert gap(a, b)==0 and gap(a, one)>1e-4 and all(o==o for o in a['losses'])

def test_stage_2_by_similarities_ends_alike(done):
    a,b = (o['similar'] for o in done['two'])
    assert gap(a, b)==0 and all(v.isfinite().all() for v in a['weights'].values())

def test_a_stage_by_the_clock_ends_together(done):
    a,b = (o['clock'] for o in done['two'])
    assert a['n']==b['n']>3 and gap(a, b)==0

@pytest.mark.parametrize('stop,then', [('stop2','2to1'), ('stop1','1to2')])
def test_a_checkpoint_continues_with_another_number_of_processes(done, stop, then):
    assert 'KeyboardInterrupt' in done[stop][0]['stage']
    for o in done[then]: assert gap(o['stage'], done['one'][0]['stage'])<1e-5
    assert (done['dir']/then/'stage.json').is_file() and 'continues after epoch' in done['stderr']

def test_a_process_that_dies_ends_the_other_with_a_sentence(done):
    a,b = (o['stage'] for o in done['dies'])
    assert 'another process of this run has ended' in a and 'KeyboardInterrupt' in b

def test_callbacks_of_fastai_that_count_the_rows_of_one_process_are_refused(done):
    for o in done['two']: assert 'use `TokenAccumulation`' in o['refused'][0] and 'leave out `distrib_ctx`' in o['refused'][1]

labeller = '''
import json, os, sys
import fastformers.inference.predictor # once for all commands
from fastformers import cli
from fastformers.commands import answer
from fastformers.inference.answers import BasePredictor
answer.chunksize,whole,seen = 9,BasePredictor.predict_frame,[]
def dies(self, df, **kwargs):
    seen.append(df)
    if int(os.environ['RANK'])==dying and len(seen)==2: os._exit(1)
    return whole(self, df, **kwargs)
BasePredictor.predict_frame = dies
for line in sys.stdin:
    folder,port,dying = json.loads(line)
    pids = []
    for rank in range(2):
        if pid := os.fork(): pids.append(pid)
        else:
            os.chdir(folder)
            for o in (1,2): os.dup2(os.open('says', os.O_WRONLY|os.O_CREAT|os.O_APPEND), o)
            os.environ.update(RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='localhost', MASTER_PORT=str(port))
            try: os._exit(cli.main('predict model --csv in.csv --out out.csv --device cpu'.split()))
            finally: os._exit(99)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(o, 0)[1]) for o in pids]), flush=True)
'''

@pytest.fixture(scope='module')
def in_two():
    "A function that labels the table of a folder in two processes, of which `dying` ends at its second chunk, and returns their exit codes and what they say"
    env = {**os.environ, 'PYTHONPATH':str(repo)}
    p = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', labeller], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    def run(folder, dying=None):
        with socket.create_server(('localhost', 0)) as s: port = s.getsockname()[1]
        print(json.dumps([str(folder), port, dying]), file=p.stdin, flush=True)
        return json.loads(p.stdout.readline()), (folder/'says').read_text()
    yield run
    p.stdin.close(); p.wait()

@pytest.fixture(scope='module')
def table(tmp_path_factory):
    "A directory with 60 rows, seven chunks of 9, a classifier, and the file that one process writes"
    d = tmp_path_factory.mktemp('table')
    BertForSequenceClassification(tiny_arch('bert', initializer_range=.3)).save_pretrained(d/'model'); tiny_tok('bert').save_pretrained(d/'model')
    tiny_df().to_csv(d/'in.csv', index=False)
    assert main(['predict', str(d/'model'), '--csv', str(d/'in.csv'), '--out', str(d/'one.csv'), '--device', 'cpu'])==0
    return d

@pytest.mark.parametrize('rows', [60, 5])
def test_two_processes_write_the_predictions_of_one(table, in_two, tmp_path, rows):
    for o in ('in.csv','one.csv'): (tmp_path/o).write_text(''.join((table/o).open().readlines()[:rows+1]))
    (tmp_path/'model').symlink_to(table/'model')
    assert in_two(tmp_path)[0]==[0,0]
    one,two = (pd.read_csv(tmp_path/o) for o in ('one.csv','out.csv'))
    assert len(two)==rows and one.drop(columns='predicted_score').equals(two.drop(columns='predicted_score'))
    assert (one.predicted_score-two.predicted_score).abs().max()<1e-5
    assert not [*tmp_path.glob('.*')]

@pytest.mark.parametrize('rank', [0, 1])
def test_a_process_that_dies_leaves_no_predictions(table, in_two, tmp_path, rank):
    "The file of an earlier command stays as it was; a first process that was killed may leave a hidden file"
    for o in ('in.csv','model'): (tmp_path/o).symlink_to(table/o)
    (tmp_path/'out.csv').write_text('old')
    codes,says = in_two(tmp_path, rank)
    assert codes[rank]==1 and (tmp_path/'out.csv').read_text()=='old'
    if rank: assert codes[0]==2 and 'another process of this run has ended' in says and not [*tmp_path.glob('.*')]

@pytest.mark.slow
def test_torchrun_runs_the_commands(tmp_path):
    tiny_df().to_csv(tmp_path/'rows.csv', index=False)
    env = {**os.environ, 'OMP_NUM_THREADS':'1', 'PYTHONPATH':str(repo)}
    run = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', '-m', 'fastformers']
    for o in (['adapt','rows.csv','--arch','wiki-mini','--output','lm','--epochs','.5'], ['classify','rows.csv','--arch','lm','--output','out','--epochs','1'],
              ['predict','out','--csv','rows.csv','--out','answers.csv']):
        res = subprocess.run([*run, *o], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert res.returncode==0, res.stderr[-3000:]
        assert res.stdout.count('Next: fastformers')==(o[0]!='predict')                # of one process
    assert (tmp_path/'out'/'classifier.json').is_file()
    assert len(pd.read_csv(tmp_path/'answers.csv'))==60

@pytest.mark.slow
def test_two_processes_that_are_killed_end_as_two_that_were_not(tmp_path):
    code = """import json, sys
from kills import kill_all
print(json.dumps(kill_all(sys.argv[1], 6, 3, only=['stage 2','two processes'], say=lambda o: None)['two processes']['rows']))"""
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, tmp_path/'work'], cwd=repo/'benchmarks', capture_output=True, text=True)
    assert res.returncode==0, res.stderr[-3000:]
    rows = json.loads(res.stdout.splitlines()[-1])
    assert len(rows)==3 and {o['verdict'] for o in rows}=={'equal'}, rows
