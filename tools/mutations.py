"""Small errors that would hurt in silence: does a test find each? `python tools/mutations.py [WORD ...]` applies those whose name holds a word, default all

Each mutation changes a line of one module, in a copy of the project, and runs the test files that should fail. A page (`models/05_heads`) is changed as the module is, and run.
Prints 'caught', 'NOT CAUGHT', or 'gone' where the line is not there any more. Two at a time, all of them take some minutes."""
import json, os, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

root = Path(__file__).resolve().parent.parent

# name, module, old text, new text, test files (of tests/) or pages (of nbs/) that should fail
mutations = [
    # masks and objectives
    ('mask share is rounded down', 'objectives/mlm', 'round(i*p)', 'int(i*p)', 'contracts_masks'),
    ('a short row has no mask', 'objectives/mlm', '[n].clamp(min=1).minimum(n)', '[n].minimum(n)', 'contracts_masks'),
    ('special tokens are masked', 'objectives/core', 'return x.real & ~torch.isin(x.ids, self.special.to(x.device))', 'return x.real', 'contracts_masks'),
    ('shares of mask and random token swapped', 'objectives/mlm', 'hash_below(drawn, self.replace[0])', 'hash_below(drawn, self.replace[1])', 'contracts_masks'),
    ('a random replacement may be special', 'objectives/mlm', 'other = known[shift_right(splitmix64(h+2),1) % len(known)]', 'other = shift_right(splitmix64(h+2),1) % len(self.tok)', 'contracts_masks'),
    ('masks depend on padding', 'objectives/core', 'pos = real.cumsum(1)*_GOLD', 'pos = torch.ones_like(real).cumsum(1)*_GOLD', 'contracts_masks'),
    ('masks ignore the pass', 'objectives/core', 'key = (seed*1_000_003 + pass_ + 1)', 'key = (seed*1_000_003 + 1)', 'contracts_masks'),
    ('validation masks are drawn anew', 'objectives/core', 'self.pass_ = self.passes if split_idx==0 else 0', 'self.pass_ = self.passes', 'contracts_masks contracts_learner'),
    ('parts of words are masked', 'objectives/mlm', 'lowest(self.hash(x), starts, self.p).gather(1, first)', 'lowest(self.hash(x), starts, self.p)', 'contracts_masks objectives/02_mlm'),
    ('CLM predicts the token itself', 'objectives/clm', 'torch.where(m, F.pad(x.ids[:,1:], (0,1)), -100)', 'torch.where(m, x.ids, -100)', 'contracts_lm_head objectives/03_clm'),
    ('RTD has no weight of 50', 'papers/electra', '+ self.rtd_weight*self.rtd(pred, y)', '+ self.rtd(pred, y)', 'rtd papers/03_electra'),
    ('RTD: hidden and refilled alike counts as replaced', 'papers/electra', 'return filled.predicted & (filled.ids!=y.as_subclass(Tensor))', 'return filled.predicted', 'rtd papers/03_electra'),
    # means and figures
    ('token loss is a mean of rows', 'objectives/core', 'else total/n.sum().clamp(min=1)', 'else rows.mean()', 'contracts_masks contracts_lm_head'),
    ('validation loss weighs batches by rows', 'objectives/metrics', 'n = (self.weight or objective_of(learn.dls).weight)(learn.pred, *learn.yb)', 'n = len(learn.yb[0])', 'contracts_learner objectives/01_metrics'),
    ('accumulated gradients are a sum', 'callback/compute', 'scale = self.unit/self.total if self.total else 1.', 'scale = 1.', 'accumulate'),
    ('an interval of 50 %', 'stats', '[.025,.975]', '[.25,.75]', 'evaluation 03_stats'),
    ('several seeds count as more rows', 'stats', 'd = np.where(w>0, w*(a-b), 0).sum(0) ', 'w,d = w.reshape(1,-1),np.where(w>0, w*(a-b), 0).reshape(-1) ', 'evaluation 03_stats'),
    ('span F1 joins neighbours', 'tasks/tags', "if start is not None and (mark not in ('I','L','E') or name!=kind):", "if start is not None and (t=='O' or name!=kind):", 'doors tasks/01_tags'),
    # models
    ('LM head at the wrong positions', 'models/core', 'return predicted.int().argsort(dim=1, descending=True, stable=True)[:,:k]', 'return predicted.int().argsort(dim=1, stable=True)[:,:k]', 'contracts_lm_head'),
    ('the head is in the lowest group', 'models/families', 'groups[where.get(id(p), top)].append(p)', 'groups[where.get(id(p), 0)].append(p)', 'contracts_groups'),
    ('a left-padded decoder counts padding', 'models/core', "ready = x.shape[1]>=min_len and bool(real[:,0].all())", "ready = x.shape[1]>=min_len", 'contracts_batches models/07_core families'),
    ('padding always on the right', 'data/loader', "(k,0) if self.left else (0,k)", "(0,k)", 'contracts_batches families'),
    ('mean pooling counts padding', 'models/heads', '/ mask.sum(1, keepdim=True).clamp(min=1)', '/ mask.shape[1]', 'heads'),
    ('max pooling sees padding', 'models/heads', 'h.float().masked_fill(~mask[...,None], -torch.inf).amax(1)', 'h.float().amax(1)', 'heads'),
    ('the head begins with shares, not log-odds', 'tasks/core', '((ys.sum(0)+.5)/(len(ys)+1)).logit()', '((ys.sum(0)+.5)/(len(ys)+1))', 'evaluation heads doors tasks/00_core'),
    ('LoRA is not merged when saved', 'models/adapters', "state[k]+m.get_delta_weight('default')", 'state[k]', 'adapters'),
    ('an adapter drops the stream', 'models/adapters', 'return h+self.up(self.act(self.down(h)))', 'return self.up(self.act(self.down(h)))', 'adapters'),
    # training
    ('frozen weights decay', 'callback/schedule', 'if not p.requires_grad: p.grad = None', 'if not p.requires_grad: pass', 'frozen schedules callback/01_freeze'),
    ('unfreezing from the bottom', 'callback/schedule', 'firsts = [*range(n_groups-1, 0, -by), 0]', 'firsts = [*range(0, n_groups, by)]', 'schedules callback/00_schedule'),
    ('low layers learn faster', 'callback/schedule', '** np.arange(n_groups-1., -1., -1.)', '** np.arange(n_groups)', 'schedules callback/00_schedule'),
    ('one-cycle ends high', 'callback/schedule', 'cos(1, 1e-5, ', 'cos(1, 1/25, ', 'schedules callback/00_schedule'),
    ('norms are decayed', 'learner/optimizer', "hyper['wd'] if decays else 0.", "hyper['wd']", 'schedules compute learner/00_optimizer'),
    ('frozen layers keep dropout', 'callback/freeze', 'for m in self.off: m.training = False', 'for m in self.off: m.training = True', 'frozen'),
    ('L2-SP pulls new weights like old ones', 'callback/regularize', 'self.beta/2*_sum_squares', 'self.alpha/2*_sum_squares', 'regularizers callback/02_regularize'),
    ('R-Drop without divergence', 'callback/regularize', '(second-self.loss + self.alpha*div)/2', '(second-self.loss)/2', 'regularizers callback/02_regularize'),
    ('EWC ignores what mattered', 'papers/ewc', '((f*(p-self.reference[p]).pow(2)).sum()', '(((p-self.reference[p]).pow(2)).sum()', 'regularizers papers/11_ewc'),
    ('a memory with gradients', 'papers/transformer_xl', 'torch.cat([mem, o.detach()], 1)', 'torch.cat([mem, o], 1)', 'transformer_xl'),
    ('the memory is cut in a segment', 'papers/transformer_xl', 'begins=read%size==0', 'begins=True', 'transformer_xl'),
    ('resume: the random state is new', 'callback/resume', "set_random_states(**{**state, 'random_state':(version, tuple(ints), gauss), 'torch_cuda_state':gpus})", 'pass', 'resume'),
    ('resume: the epoch begins again', 'data/loader', 'self.passes,self._start,self._ready = passes,batch,ready', 'self.passes,self._start,self._ready = passes,0,ready', 'resume'),
    ('every epoch in the same order', 'data/loader', 'np.random.default_rng((self.seed, self.passes))', 'np.random.default_rng((self.seed, 0))', 'contracts_batches resume data/03_loader'),
    # data and answers
    ('copies are in both parts', 'text/core', 'return int(content_hash([normal(text)]), 16)', 'return int(content_hash([text]), 16)', 'doors data/00_labels'),
    ('training and validation swapped', 'data/labels', 'v = at<valid_pct', 'v = at>=valid_pct', 'doors data/00_labels'),
    ('class weights upside down', 'tasks/class_weights', 'len(y)/((n>0).sum()*n.clip(1))', '(n>0).sum()*n.clip(1)/len(y)', 'verbs doors tasks/00_class_weights'),
    ('regression answers in standard deviations', 'models/core', 'return o.float()*std+mean', 'return o.float()', 'doors export tasks/01_regression'),
    ('the loss of a regression has the units of its target', 'tasks/regression', 'pred.float().view(y.shape)/std, y.float()/std', 'pred.float().view(y.shape), y.float()', 'doors tasks/01_regression'),
    ('answers name the wrong label', 'tasks/core', "{'label':self.labels[i], 'score':r[i]}", "{'label':self.labels[i-1], 'score':r[i]}", 'export'),
    ('the threshold is not kept', 'tasks/core', "('name','labels','target','threshold',*_facts)", "('name','labels','target',*_facts)", 'export tasks/00_core'),
    ('the temperature is not applied', 'models/core', 'o = o/self.task.temperature', 'o = o*1', 'export learner/03_calibration'),
    ('a prediction goes to another text', 'inference/predictor', 'out[i] = torch.atleast_1d(o)', 'out[b[0]] = out[i] = torch.atleast_1d(o)', 'export'),
    ('the end of a long text is kept', 'text/encode', 'head=lambda k: k, tail=lambda k: 0,', 'head=lambda k: 0, tail=lambda k: k,', 'contracts_specials text/03_encode'),
    ('special tokens in a text are special', 'text/encode', 'return Tokenizer.from_str(json.dumps(d))', 'return Tokenizer.from_str(rules)', 'contracts_specials text/03_encode'),
]

def source(o): return root/f'fastformers/{o}.py'
def page_of(module):
    "The notebook that exports `module`"
    folder,_,name = module.rpartition('/')
    return next((root/'nbs'/folder).glob(f'[0-9]*_{name}.ipynb'))

def change_page(path, old, new):
    nb = json.loads(path.read_text('utf-8'))
    for c in nb['cells']:
        if c['cell_type']=='code': c['source'] = ''.join(c['source']).replace(old, new).splitlines(True)
    path.write_text(json.dumps(nb), 'utf-8')

def commands(checks):
    "What runs each of `checks`"
    for o in checks.split():
        if '/' in o: yield [sys.executable, '-c', "import sys; from pathlib import Path; from nbdev.test import test_nb; sys.exit(not test_nb(Path(sys.argv[1]), skip_flags=['slow','gpu','network'])[0])", f'nbs/{o}.ipynb']
        else: yield [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider', f'tests/test_{o}.py']

def tried(mutation, run=None):
    "Apply `mutation` to a copy and run its checks until one fails"
    name,module,old,new,checks = mutation
    if source(module).read_text('utf-8').count(old)!=1: return 'gone'
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        for o in ('fastformers','tests','nbs','tools'): shutil.copytree(root/o, tmp/o, ignore=shutil.ignore_patterns('__pycache__','.*'))
        for o in ('pyproject.toml','README.md','settings.ini'): shutil.copy(root/o, tmp)
        path = tmp/source(module).relative_to(root)
        path.write_text(path.read_text('utf-8').replace(old, new), 'utf-8')
        change_page(tmp/page_of(module).relative_to(root), old, new)
        env = {**os.environ, 'PYTHONPATH':str(tmp), 'HF_HUB_OFFLINE':'1', 'TOKENIZERS_PARALLELISM':'false', 'OMP_NUM_THREADS':'1'}
        for cmd in commands(checks):
            if (run or subprocess.run)(cmd, cwd=tmp, env=env, capture_output=True).returncode: return 'caught'
    return 'NOT CAUGHT'

def main(words=(), run=None):
    chosen = [o for o in mutations if not words or any(w in o[0] for w in words)]
    with ThreadPoolExecutor(2) as pool:
        results = []
        for o,r in zip(chosen, pool.map(lambda o: tried(o, run), chosen)): results.append(r); print(f'{r:10}  {o[0]}', flush=True)
    print(f"{results.count('caught')} of {len(results)} caught")
    return len(results)-results.count('caught')

if __name__=='__main__': sys.exit(main(sys.argv[1:]))
