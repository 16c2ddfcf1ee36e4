"""Stage 2, training of a masked LM: tokens/s beside Hugging Face's `Trainer` and beside a bare loop that has no LM head; cpu_bf16; padding and loop overhead

    python benchmarks/train_lm.py                # S1: MiniLM (6x384, vocabulary 30,522)
    python benchmarks/train_lm.py --part s2      # a random BERT of base size (12x768, vocabulary 50,000)
    python benchmarks/train_lm.py --part s3      # our own fp32 beside cpu_bf16, loss curves
    python benchmarks/train_lm.py --part two --precision fp32   # two gloo processes with a thread each beside one process with two threads, on two idle cores
    FASTFORMERS_DATA=... python benchmarks/train_lm.py --part s5    # padding of classifier batches on IMDb, our loop beside a bare one

Rows of 128 tokens from `intents`, no padding, 15 % masked. All contenders get the same weights, rows, masks and order; see `LMTask` in timing.py. First it is checked that they do the same: without dropout and
in fp32 the losses of three steps agree. Each part takes two to four minutes on one thread and writes results/train_lm_PART.json.
"""
import json, logging, os, subprocess, sys
from functools import partial
from timing import *
from common import data_files, quiet, read, save

def lm_task(arch, tok, bs, steps, seed=42, **kwargs):
    from fastformers.text.corpora import intents
    from fastformers.data.block import lm_dls
    texts = intents().sample(frac=1, random_state=seed)
    return LMTask(arch, lm_dls(texts, tok, bs=bs, packing='full-sentences', device='cpu'), steps, **kwargs)

def same_losses(arch, tok, bs=4, steps=3):
    "Losses of a few steps of ours and the `Trainer`, in fp32 without dropout: equal if both see the same batches, divide by the same number of tokens and make the same step"
    task = lm_task(arch, tok, bs, steps, dropout=False)
    a,b = task.ours('fp32')['losses'],task.trainer('fp32')['losses']
    gap = [abs(x-y) for x,y in zip(a,b,strict=True)]
    print('  losses', *(f'{x:.6f} {y:.6f}' for x,y in zip(a,b)), f'largest difference {max(gap):.1e}')
    assert gap[0]<=1e-5, f'the loss of the first batch differs by {gap[0]:.1e}, expected 1e-5 at most'
    return dict(ours=a, trainer=b, first=gap[0], largest=max(gap))

def speed(args, arch, tok, bs, steps):
    "Ours, the `Trainer` and the headless limit, as Hugging Face computes it and with our attention and dropout, in turn"
    task = lm_task(arch, tok, bs, steps, dropout=not args.no_dropout)
    fs = dict(ours=task.ours, trainer=task.trainer, headless=task.headless, headless_fast=partial(task.headless, fast=True))
    return task,in_turn({k:partial(f, args.precision) for k,f in fs.items()}, args.repeats, says_tokens)

def own_masks(task):
    "Seconds a batch that `DataCollatorForLanguageModeling` takes to draw masks itself, which the `Trainer` above is spared, and that `MLM` takes"
    import torch
    from fastformers.data.block import tokenizer_of
    from fastformers.objectives.core import objective_of
    from fastformers.text.core import TensorTokens
    from transformers import DataCollatorForLanguageModeling
    collator,mlm = DataCollatorForLanguageModeling(tokenizer_of(task.dls).tok),objective_of(task.dls)
    ids = [TensorTokens(torch.where(y!=-100, y, x.ids)) for x,y in task.batches[:3]]
    def secs(f):
        f(ids[0])
        start = time.perf_counter()
        for o in ids: f(o)
        return (time.perf_counter()-start)/len(ids)
    return dict(collator_s=secs(lambda x: collator.torch_mask_tokens(x.ids)), mlm_s=secs(lambda x: mlm((x,), split_idx=0)))

def s1(args):
    fig = {'losses':same_losses('minilm', 'minilm')}
    task,runs = speed(args, 'minilm', 'minilm', args.bs or 32, args.steps or 7)
    fig |= {'speed':tokens_of(runs), 'flops':task.count(), 'masks':own_masks(task)}
    flops = fig['flops']['dense']['flops_a_token']/fig['flops']['ours']['flops_a_token']
    (peer,peer_cpu),(limit,limit_cpu) = (times(runs, 'ours', o) for o in ('trainer','headless'))
    fig['targets'] = targets(('S1 tokens/s, times the Trainer', peer, '>=', 2.3), ('   the same by processor time', peer_cpu, '>=', 2.3),
                             ('S1 tokens/s, share of body + step without a head', limit, '>=', .85), ('   the same by processor time', limit_cpu, '>=', .85),
                             ('   share of body + step with our attention and dropout', times(runs, 'ours', 'headless_fast')[0], '', None),
                             ('   counted FLOPs of the dense network, times ours', flops, '', None),
                             ('S1 loss of the same batch, absolute difference', fig['losses']['first'], '<=', 1e-5),
                             ('   the same, largest of three steps', fig['losses']['largest'], '', None))
    return fig

def s2(args):
    from transformers import BertConfig
    tiny = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256) if args.tiny else {}
    task,runs = speed(args, BertConfig(vocab_size=50_000, **tiny), 'minilm', args.bs or 8, args.steps or 4)
    fig = {'speed':tokens_of(runs), 'flops':task.count()}
    flops,logits = (fig['flops']['dense'][k]/fig['flops']['ours'][k] for k in ('flops_a_token','largest_logits_mib'))
    peer,peer_cpu = times(runs, 'ours', 'trainer')
    part = lambda o: spread([i/flops for i in o['each']])
    fig['targets'] = targets(('   S2 tokens/s, times the Trainer', peer, '', None), ('   counted FLOPs of the dense network, times ours', flops, '', None),
                             ('S2 the one by the other', part(peer), '>=', .9), ('   the same by processor time', part(peer_cpu), '>=', .9),
                             ("S2 largest logits, share of the dense network's", 1/logits, '<=', .2),
                             ('   tokens/s, share of body + step without a head', times(runs, 'ours', 'headless')[0], '', None),
                             ('   the same with our attention and dropout', times(runs, 'ours', 'headless_fast')[0], '', None))
    return fig

def s3(args):
    from fastformers.models.fast_cpu import bf16_speedup
    task,seeds = lm_task('minilm', 'minilm', args.bs or 32, args.steps or 7, dropout=not args.no_dropout),{o:iter(range(100)) for o in ('fp32','bf16')}
    def run(precision): return task.ours(precision, seed=next(seeds[precision])) # the same dropout in both, another one each time: what fp32 runs differ by is the noise
    runs = in_turn({o:partial(run, o) for o in seeds}, args.repeats, says_tokens)
    curves = {k:np.array([o['losses'] for o in v]) for k,v in runs.items()}
    print('\n  step     ' + ''.join(f'{i:8}' for i in range(task.steps)), *(f'  {k} mean' + ''.join(f'{o:8.4f}' for o in v.mean(0)) for k,v in curves.items()), sep='\n')
    noise = max((np.abs(a-b).max() for i,a in enumerate(curves['fp32']) for b in curves['fp32'][:i]), default=float('nan'))
    gap = np.abs(curves['bf16'].mean(0)-curves['fp32'].mean(0)).max()
    fig = {'speed':tokens_of(runs), 'curves':{k:v.round(4).tolist() for k,v in curves.items()}, 'a linear layer, times fp32':bf16_speedup()}
    clock,cpu = times(runs, 'bf16', 'fp32')
    fig['targets'] = targets(('S3 tokens/s in bf16, times fp32', clock, '>=', 2.), ('   the same by processor time', cpu, '>=', 2.),
                             ('S3 largest gap of mean curves / of two fp32 runs', gap/noise, '<=', 1.), ('   largest gap of mean curves', gap, '', None))
    return fig

def fastai_dl(dl, bs):
    "fastai's `SortedDL`, shuffling, over the rows of our loader `dl`, padded as fastai's `pad_input_chunk` does"
    from fastai.text.data import SortedDL, TensorText, pad_input_chunk
    rows = [(TensorText(x.ids), y) for x,y in dl.dataset]
    return SortedDL(rows, bs=bs, shuffle=True, before_batch=partial(pad_input_chunk, pad_idx=0), drop_last=False, device='cpu')

def padding(dl):
    "Share of the places in the batches of a pass over `dl` that hold padding, and the seconds of the pass"
    import torch
    start,places = time.perf_counter(),[x.as_subclass(torch.Tensor) for x,_ in dl]
    secs = time.perf_counter()-start
    pad = sum(int((((o>>32)&1)==1).sum() if type(dl).__name__=='TokensDL' else (o==0).sum()) for o in places)
    return dict(share=pad/sum(o.numel() for o in places), s=secs, batches=len(places), tokens=sum(o.numel() for o in places)-pad)

def loops(df, bs, max_len, steps, precision):
    "Contenders: `fit` of a classifier, and a bare loop over the same batches, which lie ready, with the same model, loss and optimizer"
    import torch
    from fastai.callback.core import Callback, CancelFitException
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    from fastformers.callback.compute import cpu_bf16
    dls = classifier_dls(df, 'minilm', bs=bs, max_len=max_len, device='cpu')
    batches = [b for _,b in zip(range(steps), dls.train)]
    tokens = [int(x.attention_mask.sum()) for x,_ in batches]
    torch.manual_seed(0)
    state = {k:v.clone() for k,v in classifier_learner(dls, 'minilm', head_init='random').model.state_dict().items()}
    def learner():
        learn = classifier_learner(dls, 'minilm', head_init='random', cbs=cpu_bf16(enabled=precision=='bf16'))
        learn.model.load_state_dict(state)
        return learn,Clock(steps)
    def ours():
        learn,clock = learner()
        class Ticks(Callback):
            order = 1000
            def before_batch(self):
                if not self.iter: torch.manual_seed(0) # the loader has drawn a number: from here on both draw the same dropout
            def after_batch(self):
                if clock.tick(self.loss): raise CancelFitException
        with learn.no_bar(): learn.fit(1, 5e-4, cbs=Ticks())
        return clock.result(tokens)
    def bare():
        learn,clock = learner()
        model,loss_func,o = learn.model.train(),learn.loss_func,LMTask.opt
        opt = torch.optim.AdamW(model.parameters(), 5e-4, (o['mom'],o['sqr_mom']), o['eps'], o['wd'], fused=True)
        torch.manual_seed(0)
        for x,y in batches:
            with torch.autocast('cpu', dtype=torch.bfloat16, enabled=precision=='bf16'): pred = model(x)
            loss = loss_func(pred.float(), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            clock.tick(loss)
        return clock.result(tokens)
    return dict(ours=ours, bare=bare)

def s5(args):
    from fastformers.data.block import classifier_dls
    df = read(data_files('imdb/train.csv.gz')[0]).sample(args.rows, random_state=0)[['text','label']]
    fig,rows = {'padding':{}},[]
    for bs,max_len in ((16,256),(32,512),(64,512)):
        ours = classifier_dls(df, 'minilm', bs=bs, max_len=max_len, device='cpu').train
        pads = in_turn(dict(ours=lambda: padding(ours), SortedDL=lambda o=fastai_dl(ours, bs): padding(o)), args.repeats, lambda o: f"{100*o['share']:6.2f} % padding, {o['s']:6.2f} s a pass")
        assert {o['tokens'] for o in pads['ours']}=={o['tokens'] for o in pads['SortedDL']}, 'the two loaders gave other tokens'
        fig['padding'][f'bs {bs}, max_len {max_len}'] = pads
        percent = {k:spread([100*o['share'] for o in v]) for k,v in pads.items()}
        rows += [(f'S5 padding, % of places, bs {bs}, max_len {max_len}', percent['ours'], '<=', 5.), ("   fastai's SortedDL", percent['SortedDL'], '', None),
                 ('   speed of our loader, times SortedDL', ratio(*([o['s'] for o in pads[k]] for k in ('SortedDL','ours'))), '', None)]
    runs = in_turn(loops(df[:1000], args.bs or 16, 256, args.steps or 12, args.precision), args.repeats, says_tokens)
    gap = max(abs(a-b) for a,b in zip(runs['ours'][0]['losses'], runs['bare'][0]['losses'], strict=True))
    (clock,cpu) = times(runs, 'ours', 'bare')
    return fig | {'speed':tokens_of(runs), 'targets':targets(*rows, ('S5 steps/s of the learner, share of a bare loop', clock, '>=', .95), ('   the same by processor time', cpu, '>=', .95),
                                                            ('   largest difference of a loss', gap, '', None))}

def worker(args):
    "One contender of `two`, in the processes and threads that it was started with; the first process prints its figures"
    o = lm_task('minilm', 'minilm', args.bs or 32, args.steps or 7, dropout=not args.no_dropout).ours(args.precision)
    if int(os.environ.get('RANK', 0))==0: print(json.dumps(o))

def two(args):
    "Two processes with one thread each, which share the rows of a batch, and one process with two threads, in turn, each run in new processes: the same first weights and batches"
    def run(n):
        start = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2'] if n==2 else []
        own = ['--part=worker', f'--threads={2//n}', f'--precision={args.precision}', f'--bs={args.bs or 32}', f'--steps={args.steps or 7}', *(['--no-dropout'] if args.no_dropout else [])]
        p = subprocess.run([sys.executable, '-W', 'ignore', *start, __file__, *own], env={**os.environ, 'OMP_NUM_THREADS':str(2//n)}, stdout=subprocess.PIPE, text=True, check=True)
        return next(json.loads(o) for o in p.stdout.splitlines() if o.startswith('{'))
    runs = in_turn({'two processes':partial(run, 2), 'one process':partial(run, 1)}, args.repeats, lambda o: f"{o['tokens/s']:9.0f} tokens/s  loss {o['losses'][0]:.6f} -> {o['losses'][-1]:.6f}")
    return {'tokens/s':{k:v['tokens/s'] for k,v in tokens_of(runs).items()}, 'losses':{k:v[0]['losses'] for k,v in runs.items()},
            'targets':targets(('tokens/s of two processes, times one with two threads', times(runs, 'two processes', 'one process')[0], '', None))}

parts = dict(s1=s1, s2=s2, s3=s3, s5=s5, two=two, worker=worker)

def main():
    p = parser(__doc__)
    p.add_argument('--part', choices=parts, default='s1')
    p.add_argument('--precision', choices=('bf16','fp32'), default='bf16', help='of S1 and S2')
    p.add_argument('--steps', type=int, default=None, help='of each run, the first of which is not timed')
    p.add_argument('--bs', type=int, default=None)
    p.add_argument('--no-dropout', action='store_true', help='S1 to S3 with every dropout at 0')
    p.add_argument('--rows', type=int, default=5000, help='reviews of S5')
    p.add_argument('--tiny', action='store_true', help='S2 with a tiny network: does it run at all?')
    args = p.parse_args()
    import torch
    torch.set_num_threads(args.threads)
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR) # each contender starts the same new head
    fig = parts[args.part](args)
    name = 'two_processes' if args.part=='two' else f'train_lm_{args.part}'
    if fig and not args.tiny: save(f"{name}{'_no_dropout' if args.no_dropout else ''}", args, vars(args), fig)

if __name__=='__main__': main()
