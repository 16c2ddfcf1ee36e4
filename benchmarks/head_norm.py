"""How does the head of a classifier normalise the pooled states: LayerNorm, BatchNorm (ULMFiT's), or not at all?

    FASTFORMERS_DATA=... python benchmarks/head_norm.py --work DIR                   # hours on one core; validation rows only
    FASTFORMERS_DATA=... python benchmarks/head_norm.py --work DIR --sets docs --archs wiki-mini

The sets are those of stage2.py; half of its epochs, reviews cut at 256 tokens. `--work` keeps finished rows: the same command goes on after it was stopped.
"""
from classify import Rows, last_only
from common import *
import stage2

sizes,lrs = dict(docs=400, trec=500, imdb=500),{'wiki-mini':1e-3, 'minilm':2e-4}

def classify(name, arch, norm, lr, df, seed):
    from functools import partial
    from torch import nn
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    from fastformers.models.heads import PoolingHead
    set_seed(seed)
    c = stage2.sets[name]
    dls = classifier_dls(df, arch, bs=16, seed=seed, max_len=min(c['max_len'], 256), device='cpu')
    head = partial(PoolingHead, norm={'LayerNorm':nn.LayerNorm, 'BatchNorm':nn.BatchNorm1d, 'none':None}[norm])
    learn = classifier_learner(dls, arch, head=head, cbs=last_only())
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(c['epochs'][sizes[name]]//2, lr)
    return {'validation':100*(1-float(learn.recorder.values[-1][2]))}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/head_norm'), help='directory of what is under way')
    p.add_argument('--sets', default=','.join(sizes))
    p.add_argument('--archs', default=','.join(lrs))
    p.add_argument('--norms', default='LayerNorm,BatchNorm,none')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    rows,seeds = Rows(args.work, sizes=sizes, lrs=lrs),[int(o) for o in args.seeds.split(',')]
    for name in args.sets.split(','):
        train,valid,*_ = getattr(stage2, name)()
        for arch in args.archs.split(','):
            for seed in seeds:
                df = pd.concat([stage2.sample(train, sizes[name], seed).assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]
                for norm in args.norms.split(','):
                    rows.get(lambda: classify(name, arch, norm, lrs[arch], df, seed), set=name, arch=arch, norm=norm, seed=seed)
    o = pd.DataFrame(rows.all)
    figures = {f'{s}, {a}, {n}':stat(g.validation) for (s,a,n),g in o.groupby(['set','arch','norm'], sort=False)}
    save('head_norm', args, dict(sizes=sizes, lrs=lrs, seeds=seeds), {'validation error %':figures})

if __name__=='__main__': main()
