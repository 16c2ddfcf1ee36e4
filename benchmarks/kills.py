"""SIGKILL at random moments: stages 2, 3, a comparison and two processes end with the bytes of runs that were never stopped

    python benchmarks/kills.py            # about four minutes; Linux; needs no data

Each phase is first run without a kill, and timed. Then the same is started again and again in a directory of its own and killed: some time after its
work began ("time"), while a checkpoint is being written ("write"), or at its end ("end"). When one comes through, its files, weights, optimizer, losses
and random numbers must be those of the first run; if kills are left, the next begins. Of two processes that train together by gloo one or both are
killed; the other must end by itself with a sentence, or with its work done.
"""
import argparse, hashlib, json, logging, mmap, os, random, re, shutil, signal, struct, sys, tempfile, time, traceback, warnings
from glob import glob
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1', OMP_NUM_THREADS='1', MPLBACKEND='agg')
warnings.filterwarnings('ignore')

def sha(data): return hashlib.sha256(data).hexdigest()[:16]

def fingerprint(learn, optimizer=True):
    "What two learners that did the same have in common: weights, optimizer, curves, rates, open layers, losses, random numbers"
    import numpy as np, torch
    from fastai.optimizer import OptimWrapper
    def raw(v): return sha(v.contiguous().numpy().tobytes()) if hasattr(v, 'numpy') else v
    state = learn.opt.opt.state if isinstance(learn.opt, OptimWrapper) else learn.opt.state
    own,rec = [p for ps in learn.opt.param_lists for p in ps] if optimizer else [],learn.recorder
    return {'weights':{k:raw(v) for k,v in learn.model.state_dict().items()}, 'optimizer':[{k:raw(v) for k,v in sorted(state[p].items())} for p in own],
            'rates':[[float(h[k]) for k in ('lr','mom','wd') if k in h] for h in learn.opt.hypers], 'open':[p.requires_grad for p in learn.model.parameters()],
            'losses':[float(o) for o in rec.losses], 'curve':[list(o) for o in rec.values], 'lr over time':[np.asarray(o).tolist() for o in rec.lrs], 'steps':[int(o) for o in rec.iters],
            'validation':list(learn.validate()), 'random':[random.random(), float(np.random.rand()), float(torch.rand(()))]}

def files_in(d, but=()): return {str(o.relative_to(d)):sha(o.read_bytes()) for o in sorted(d.rglob('*')) if o.is_file() and o.name not in but}

# ---- what is done, in a process of its own; `say(*numbers)` tells the parent where it is

def corpus(d):
    "A table of short texts with labels"
    from fastformers.text.corpora import intents
    intents(600)[['text','label']].to_csv(d/'labels.csv', index=False)

def _train(d, say, learn, **kwargs):
    "`fit_schedule` and `save_encoder`"
    from fastai.callback.core import Callback
    from fastformers.callback.resume import Resume
    class Where(Callback):
        order = 2000
        def after_batch(self): say(self.epoch, self.iter+1, int(not self.training))
    with learn.no_logging(), learn.no_bar(): learn.fit_schedule(cbs=[Resume(d/'ckpt', every=8, minutes=None), Where()], **kwargs)
    res = fingerprint(learn)
    learn.save_encoder(d/'out')
    return {**res, 'files':files_in(d/'out', but=('stage.json',))}

def stage2(d, src, say):
    import pandas as pd
    from transformers import BertConfig
    from fastai.torch_core import set_seed
    from fastformers.data.block import lm_dls
    from fastformers.learner.core import lm_learner
    from fastformers.callback.schedule import full_tune
    from fastformers.text.store import TokenStore
    set_seed(7)
    texts = pd.read_csv(src/'labels.csv').text
    store = TokenStore.build(texts, 'minilm', d/'store', overwrite=True)
    dls = lm_dls(store, 'minilm', seq_len=48, bs=16, device='cpu')
    arch = BertConfig(vocab_size=30522, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128)
    assert arch.hidden_dropout_prob>0 and dls.train.shuffle
    return _train(d, say, lm_learner(dls, arch, pretrained=False, precision='fp32'), schedule=full_tune, lr=1e-3, epochs=1.5)

def stage3(d, src, say):
    import pandas as pd
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    from fastformers.callback.schedule import gradual_unfreeze
    set_seed(8)
    dls = classifier_dls(pd.read_csv(src/'labels.csv'), 'minilm', max_len=48, bs=16, device='cpu')
    return _train(d, say, classifier_learner(dls, src/'whole stage 2'/'out', head_init='random', precision='fp32'), schedule=gradual_unfreeze, lr=2e-3, epochs=5, discr=.8)

def comparison(d, src, say):
    import pandas as pd
    from fastformers.compare.leaderboard import leaderboard
    df = pd.read_csv(src/'labels.csv')
    def log(_): say(0, len(list((d/'board').glob('fits/*'))), 0)
    log('')
    board = leaderboard(df[:200], archs=src/'whole stage 2'/'out', minutes=60, seeds=(1,2), path=d/'board', resume=True, log=log,
                        entries=['TF-IDF','frozen probe','all layers','mean'])
    scores = {f'{k} {seed}':sha(v.numpy().tobytes()) for (k,seed),(v,_) in board.fits.items()}
    return {'winner':board.winner, 'scores':scores, 'best':sha(board.best.scores(df.text[200:].tolist()).numpy().tobytes()),
            'files':sorted(files_in(d/'board'))}

# ---- a process that can be killed, and when

class Child:
    "`job` in a fork of this process, which has imported everything and started no thread, or in `n` that train together"
    def __init__(self, job, d, src, n=1):
        self.dir,self.log,self.place = d,d.with_name(d.name+'.log'),mmap.mmap(-1, 64) # shared with the forks
        d.mkdir(exist_ok=True)
        self.from_byte = self.log.stat().st_size if self.log.exists() else 0
        self.start,meet = time.time(),f'file://{tempfile.mktemp(dir=d.parent)}'
        self.pids,self.codes = [],{}
        for rank in range(n):
            if not (pid := os.fork()): self._work(job, src, rank, n, meet)
            self.pids.append(pid)
    def _say(self, *at): self.place[:32] = struct.pack('4q', 1, *(*at, 0, 0, 0)[:3])
    def _work(self, job, src, rank, n, meet):
        out = os.open(self.log, os.O_WRONLY|os.O_CREAT|os.O_APPEND)
        os.dup2(out, 1); os.dup2(out, 2)
        logging.basicConfig(level=logging.INFO, format='%(message)s', force=True)
        try:
            if n>1:
                import torch.distributed as dist
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(n))
                dist.init_process_group('gloo', init_method=meet, rank=rank, world_size=n)
            (self.dir/f'result{rank}.json').write_text(json.dumps(job(self.dir, src, (lambda *at: None) if rank else self._say)))
            os._exit(0)
        except BaseException: traceback.print_exc(); sys.stderr.flush(); os._exit(1)

    @property
    def at(self): return struct.unpack('4q', self.place[:32])
    def over(self):
        for o in self.pids:
            if o not in self.codes and (r := os.waitpid(o, os.WNOHANG))[0]: self.codes[o] = os.waitstatus_to_exitcode(r[1])
        return len(self.codes)==len(self.pids)
    def wait_until(self, moment, limit=600):
        "Wait until `moment()` is true or all is over; was it the moment?"
        start = time.time()
        while not self.over():
            if moment(): return True
            if time.time()-start>limit: self.kill(self.pids); raise TimeoutError(f'{self.dir} hangs; see {self.log}')
            time.sleep(.0003)
        return False
    def kill(self, pids):
        "Kill the processes `pids`; the others have a minute to end by themselves"
        for o in pids:
            if o not in self.codes: os.kill(o, signal.SIGKILL)
        self.wait_until(lambda: False, 60)
    def said(self): return self.log.read_bytes()[self.from_byte:].decode(errors='replace')
    def silent(self):
        "Name what other processes than those that were killed ended with, if with an error without a sentence"
        bad = [o for o in self.codes.values() if o not in (0, -signal.SIGKILL)]
        return f'the other ended with {bad}, without a sentence' if bad and 'another process of this run has ended' not in self.said() else ''
    def result(self):
        if any(self.codes.values()): raise RuntimeError(f'exit status {self.codes}:\n{self.said()[-3000:]}')
        first,*others = [json.loads((self.dir/f'result{i}.json').read_text()) for i in range(len(self.pids))]
        return first|{f'process {i}':o for i,o in enumerate(others, 1)}

def half_written(d): # `Path.glob` fails where a directory is deleted meanwhile
    return [Path(o).name for p in ('ckpt/.*-fit*','.*-out','board/**/.*') for o in glob(p, root_dir=d, recursive=True, include_hidden=True)]

def moment(kind, child, took, rng):
    "A function that says when to kill"
    d = child.dir
    if kind=='time':
        wait,begun = rng.uniform(0, took),[]
        def now():
            if child.at[0] and not begun: begun.append(time.time())
            return begun and time.time()-begun[0]>=wait
        return now
    late,seen,n,end = rng.uniform(0, .03),[],rng.randint(1, 6),kind=='end'
    def now():
        if not child.at[0]: return False # what an earlier kill left is still there
        there = [o for o in half_written(d) if not end or '-end' in o or o.endswith(('-out','-best'))]
        if there and there[0] not in [o for o,_ in seen]: seen.append((there[0], time.time()))
        return len(seen)>=(1 if end else n) and time.time()-seen[-1][1]>=late
    return now

# ---- a phase

def where(child):
    "How far a child that was killed had come, and what half-written things it left"
    _,epoch,batch,valid = child.at
    return f"epoch {epoch}, batch {batch}{' of validation'*valid}" if batch else 'before the first batch', ', '.join(half_written(child.dir))

def resumed(said):
    for p in (r'continues after (epoch \d+, batch \d+)', r'(fit \d+ was finished)'):
        if m := re.search(p, said): return m[1]
    return 'nothing yet' # killed again before anything was new, or begun anew

def differences(a, b):
    "Keys of the dictionaries `a` and `b` under which they differ, and keys of the dictionaries there"
    bad = [k for k in dict.fromkeys([*a,*b]) if a.get(k)!=b.get(k)]
    return [f"{k} ({', '.join(differences(a[k], b[k]))[:200]})" if isinstance(a.get(k), dict) and isinstance(b.get(k), dict) else k for k in bad]

def left_over(d): return [o.name for o in d.glob('ckpt/.*-fit*')] # a hidden directory of `save_encoder` stays

def phase(name, job, n, root, n_kills, rng, say):
    "Run `job` in `n` processes whole, then killed `n_kills` times: seconds of its work, how many runs the kills were spread over, and a row for each kill"
    rows,series = [],0
    c = Child(job, root/f'whole {name}', root, n)
    c.wait_until(lambda: c.at[0])
    begun = time.time(); c.wait_until(lambda: False)
    took,want = time.time()-begun,c.result()
    say(f'{name}: without a kill {took:.1f} s of work')
    kinds = ['time','write','time','end','write']
    while len(rows)<n_kills:
        d,verdicts = root/f'{name} {series}',[]
        series += 1
        while True:
            child = Child(job, d, root, n)
            kind = kinds[len(rows)%len(kinds)] if len(rows)<n_kills else None
            hit = kind and child.wait_until(moment(kind, child, took*.8, rng))
            if not hit: child.wait_until(lambda: False)
            for o in verdicts[-1:]: o['resumed from'] = resumed(child.said())
            if not hit: break
            which = rng.choice([[0],[1],[0,1]]) if n>1 else [0]
            child.kill([child.pids[o] for o in which])
            at,left = where(child)
            if n>1: kind += f", process{'es' if len(which)>1 else ''} {' and '.join(map(str, which))}"
            row = {'phase':name, 'moment':kind, 'at':at, 'left':left, 'resumed from':'', 'silent':child.silent()}
            verdicts.append(row); rows.append(row)
            say(f"{name}: kill {len(rows)} of {n_kills} ({kind}) at {row['at']}{', left '+row['left'] if row['left'] else ''}")
        got = child.result()
        bad = differences(want, got)+[f'left over: {o}' for o in left_over(d)]
        for o in verdicts: o['verdict'] = '; '.join([*bad, *filter(None, [o.pop('silent')])]) or 'equal'
        say(f"{name}: run {series} came through after {len(verdicts)} kills: {'; '.join(bad) or 'equal'}")
        if not bad: shutil.rmtree(d)
    return dict(seconds=round(took, 1), runs=series, rows=rows)

phases = {'stage 2':(stage2,1), 'stage 3':(stage3,1), 'comparison':(comparison,1), 'two processes':(stage3,2)} # and how many processes

def table(rows):
    cols = list(rows[0])
    cells = [cols]+[[str(r.get(c, '')) for c in cols] for r in rows]
    width = [max(len(r[i]) for r in cells) for i in range(len(cols))]
    return '\n'.join('  '.join(o.ljust(w) for o,w in zip(r, width)).rstrip() for r in cells)

def kill_all(work, n_kills=20, seed=None, only=phases, say=print):
    "All phases in the directory `work`: figures and rows"
    import fastai.text.all, fastformers.compare.leaderboard, fastformers.learner.core, fastformers.callback.distributed, fastformers.callback.resume, fastformers.text.store, fastformers.data.block, fastformers.text.corpora # once, for all forks
    from fastai.basics import defaults
    from fastai.callback.progress import ProgressCallback
    rng,work = random.Random(seed),Path(work)
    work.mkdir(parents=True, exist_ok=True)
    corpus(work)
    if 'stage 2' not in only: phase('stage 2', *phases['stage 2'], work, 0, rng, say) # others start from it
    per = [n_kills//len(only)+(i<n_kills%len(only)) for i in range(len(only))]
    return {name:phase(name, *phases[name], work, k, rng, say) for name,k in zip(only, per)}

def main():
    from common import commit, results, save
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('--kills', type=int, default=20, help='how many in all')
    p.add_argument('--only', choices=[*phases], nargs='+', default=[*phases], help='phases; the rows of the others stay in the stored table')
    p.add_argument('--seed', type=int, default=None, help='of the moments; default: another each time, printed')
    p.add_argument('--work', default=None, help='empty directory for the runs; default: a temporary one')
    args = p.parse_args()
    if args.work and Path(args.work).exists() and os.listdir(args.work): p.error(f'--work {args.work} is not empty; what earlier runs left there would be continued')
    seed = random.randrange(10**6) if args.seed is None else args.seed
    start = time.time()
    def say(o): print(f'{time.time()-start:6.1f} s  {o}', flush=True)
    say(f'seed {seed}')
    with tempfile.TemporaryDirectory() as tmp: res = kill_all(args.work or tmp, args.kills, seed, args.only, say)
    rows = [o for r in res.values() for o in r['rows']]
    bad = [o for o in rows if o['verdict']!='equal']
    print('\n'+table(rows), f"\n{len(rows)} kills, {len(bad)} of them in runs that ended otherwise", sep='\n')
    old = json.loads((results/'kills.json').read_text())['phases']
    new = {k:{'commit':commit, **res[k]} if k in res else old[k] for k in phases if k in res or k in old}
    save('kills', args, {'kills':args.kills, 'seed':seed}, {'seconds':round(time.time()-start), 'phases':new, 'different':len(bad)})
    sys.exit(bool(bad) or len(rows)<args.kills)

if __name__=='__main__': main()
