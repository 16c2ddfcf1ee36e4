"""S6, gradual unfreezing: seconds of an epoch in which few layers train, as shares of a full epoch

    FASTFORMERS_DATA=... python benchmarks/frozen.py                # IMDb at 256 tokens, MiniLM (6 blocks), fp32, one thread

Contenders train the same reviews in the same batches: all layers; the head alone; the head and the top k blocks.
An epoch is the training pass, from the first batch to the last: loader, check of the weights, states, model, loss, backward pass, optimizer.
An epoch in which k of L blocks train would cost (L+2k)/3L of a full one, if a backward pass costs two forward passes and nothing else costs anything. Takes about four minutes on one thread and writes results/frozen.json.
"""
from functools import partial
from timing import *
from common import data_files, quiet, read, save

def learner(dls, open_blocks, precision):
    "MiniLM of which the head and the top `open_blocks` blocks train, None: all of it"
    import torch
    from fastformers.learner.core import classifier_learner
    from fastformers.callback.compute import cpu_bf16
    torch.manual_seed(0)
    learn = classifier_learner(dls, 'minilm', head_init='random', cbs=[cpu_bf16(enabled=precision=='bf16')])
    learn.create_opt()
    if open_blocks is not None: learn.freeze_to(-1-open_blocks)
    return learn

def epoch(learn, lr=5e-4):
    "Seconds of the training pass of one epoch, by the clock and of the processor, and the loss of each batch"
    from fastai.callback.core import Callback, CancelEpochException
    now = lambda: (time.perf_counter(), time.process_time())
    class Watch(Callback):
        order = -100
        def before_train(self): self.start = now()
        def after_train(self): self.secs = [b-a for a,b in zip(self.start, now())]; raise CancelEpochException()
    watch = Watch()
    with learn.no_logging(), learn.no_bar(): learn.fit(1, lr, cbs=watch)
    return dict(s=watch.secs[0], cpu_s=watch.secs[1], losses=[float(o) for o in learn.recorder.losses])

def main():
    p = parser(__doc__)
    p.add_argument('--rows', type=int, default=192, help='reviews of an epoch')
    p.add_argument('--bs', type=int, default=16)
    p.add_argument('--max-len', type=int, default=256)
    p.add_argument('--ks', default='1,3', help='how many top blocks are open, of 6')
    p.add_argument('--precision', choices=('bf16','fp32'), default='fp32')
    p.add_argument('--try', dest='trial', action='store_true', help='write no results: does it run at all?')
    args = p.parse_args()
    import torch
    from fastformers.data.block import classifier_dls
    torch.set_num_threads(args.threads)
    quiet()
    df = read(data_files('imdb/train.csv.gz')[0]).sample(args.rows+2, random_state=0)[['text','label']]
    df['is_valid'] = [i<2 for i in range(len(df))] # no validation is timed
    dls = classifier_dls(df, 'minilm', bs=args.bs, max_len=args.max_len, device='cpu')
    L,ks = 6,[int(o) for o in args.ks.split(',')]
    make = partial(learner, dls, precision=args.precision)
    learners = {'all open':make(None), 'head alone':make(0), **{f'top {k} of {L} blocks':make(k) for k in ks}}
    says = lambda o: f"{o['s']:8.3f} s, {o['cpu_s']:8.3f} s of the processor"
    runs = in_turn({name:partial(epoch, o) for name,o in learners.items()}, args.repeats, says)
    def share(name, f='s'): return ratio([o[f] for o in runs[name]], [o[f] for o in runs['all open']])
    def times(o, x): return spread([i/x for i in o['each']])
    rows = [('   head alone, share of a full epoch', share('head alone'), '', None)]
    for k in ks:
        name,ideal = f'top {k} of {L} blocks',(L+2*k)/(3*L)
        rows += [(f'S6 {name}, share of a full epoch / {ideal:.3f}', times(share(name), ideal), '<=', 1.15), ('   the same by processor time', times(share(name, 'cpu_s'), ideal), '<=', 1.15)]
    fig = {'reviews':args.rows, 'tokens':int(dls.train.lengths.sum()),
           'seconds':{name:{f:spread([o[f] for o in v]) for f in ('s','cpu_s')} for name,v in runs.items()},
           'targets':targets(*rows)}
    if not args.trial: save('frozen', args, vars(args), fig)

if __name__=='__main__': main()
