"""IMDb with 100 and 500 labels: does it help that the classifier answers alike for a review and for a masked copy (`Consistency`, UDA)?

    FASTFORMERS_DATA=... python benchmarks/consistency.py --work DIR --arch LM      # validation reviews of other films
    FASTFORMERS_DATA=... python benchmarks/consistency.py --work DIR --arch minilm --sizes 100 --seeds 42

Reviews cut at 128 tokens, the same labelled ones with and without 5,000 unlabelled ones. `LM` is the directory of wiki-mini after stage 2 on the unlabelled reviews (`stage2.py imdb --arms both` writes it). `--work` keeps finished rows: the same command goes on
after it was stopped. The split is that of stage2.py.
"""
from classify import Rows, last_only
from common import *
import stage2

epochs,how = {100:15, 500:8},dict(max_len=128, bs=16)
arms = {'alone':None, 'consistency':{}, 'consistency, no annealing':dict(anneal=False)} # arguments of `Consistency`

def classify(df, arch, texts, n, seed, arm):
    from fastai.torch_core import set_seed
    from fastformers.papers.uda import Consistency
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(seed)
    cbs = [last_only(), *([] if arms[arm] is None else [Consistency(texts, **arms[arm])])]
    learn = classifier_learner(classifier_dls(df, arch, seed=seed, device='cpu', **how), arch, precision='fp32', cbs=cbs)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs[n], 2e-4)
    return {'validation':100*(1-float(learn.recorder.values[-1][2]))}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/consistency'), help='directory of finished rows')
    p.add_argument('--arch', default='wiki-mini', help='the body: a shipped name, or the directory of a language model')
    p.add_argument('--sizes', default='100,500', help='numbers of labels')
    p.set_defaults(seeds='42,43,44,45,46')
    args = p.parse_args()
    import torch
    from glue import interval
    torch.set_num_threads(1)
    quiet()
    rows,seeds,figures = Rows(args.work, epochs=epochs, how=how, arch=Path(args.arch).name),[int(o) for o in args.seeds.split(',')],{}
    train,valid,_,unsup = stage2.imdb()
    texts = np.random.default_rng(0).permutation(unsup)[:5000].tolist()
    for n in map(int, args.sizes.split(',')):
        def row(arm, seed):
            df = pd.concat([stage2.sample(train, n, seed).assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]
            return rows.get(lambda: classify(df, args.arch, texts, n, seed, arm), n=n, arm=arm, seed=seed)['validation']
        each = {arm:[] for arm in arms if n<500 or arm!='consistency, no annealing'} # it lost by far with the fewest labels
        for seed in seeds:
            for arm in each: each[arm].append(row(arm, seed))
        figures |= {f'{n} labels, {arm}':stat(v) for arm,v in each.items()}
        if len(seeds)>1: figures |= {f'{n} labels, gain by {arm}':interval(each['alone'], v) for arm,v in each.items() if arm!='alone'}
    save('consistency', args, dict(arch=Path(args.arch).name, epochs=epochs, how=how, seeds=seeds), {'validation error %':figures})

if __name__=='__main__': main()
