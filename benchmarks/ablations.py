"""What still pays of ULMFiT's ideas: each alone, in MiniLM, beside all layers at once with one rate

    FASTFORMERS_DATA=... python benchmarks/ablations.py rates          # a rate for each arm, on draw 0 and development rows
    FASTFORMERS_DATA=... python benchmarks/ablations.py run --final    # three draws, test rows

Every arm has the same rows, batches and number of steps, and its rate from the same grid. Until 30 November this had 1e-4 to 8e-4; test rows with these rates stay, and the page takes the later ones. The base trains all layers at once, with one rate, one cycle, concat pooling and a random head, from the pretrained encoder. Rows are in results/ablations/rows.jsonl, and a second call goes on. Stage 2 stands in the rows of `compare.py`."""
from classify import Rows as Table, trained
from common import *
from compare import sets

data = {'trec':500, 'agnews':400, 'imdb100':500}
grid = 2.5e-5,5e-5,1e-4,2e-4,4e-4,8e-4,1.6e-3,3.2e-3
arms = {'all layers at once, one rate':{}, 'random weights':dict(pretrained=False), 'output layer from a probe':dict(head_init=None), 'rates by layer, 2.6':dict(discr=2.6), 'rates by layer, 1.1':dict(discr=1.1),
        'gradual unfreezing':dict(schedule='gradual_unfreeze'), 'slanted triangular rates':dict(anneal='slanted_triangular'), 'mean pooling':dict(pool='mean'),
        'rates by layer, unfreezing and triangle':dict(discr=2.6, schedule='gradual_unfreeze', anneal='slanted_triangular')}

def main(args):
    from fastformers.inference.stage_json import versions
    from fastformers.learner.save import as_predictor
    table,v = Table(results/'ablations'),versions()
    def fit(name, n, seed, arm, lr, at):
        rows = sets[name][1]()[0].sample(n, random_state=seed)
        start = time.process_time()
        df = pd.concat([rows.assign(is_valid=False), rows[:1].assign(is_valid=True)])[['text','label','is_valid']]
        learn = trained(df, seed, lr=lr, epochs=round(150*16/n), bs=16, max_len=128, **arms[arm])
        spent = round(time.process_time()-start)
        right = [str(o['label'])==str(l) for o,l in zip(as_predictor(learn)(at.text.tolist()), at.label)]
        return dict(accuracy=round(float(np.mean(right)), 4), rows=len(at), cpu_seconds=spent, commit=commit, processor=processor(), versions=v)
    for name in args.sets.split(','):
        n = data[name]
        train,dev,test = sets[name][1]()
        def rate(arm, lr): return table.get(lambda: fit(name, n, 0, arm, lr, dev[:500]), 'accuracy', part='rates', set=name, arm=arm, lr=lr)['accuracy']
        def climb(arm): # from the middle of the grid, upwards or downwards while it gets better
            i = grid.index(2e-4)
            while i+1<len(grid) and rate(arm, grid[i+1])>rate(arm, grid[i]): i += 1
            while i>0 and rate(arm, grid[i-1])>rate(arm, grid[i]): i -= 1
            return grid[i]
        best = {a:climb(a) for a in arms}
        if args.do=='rates': continue
        for seed in (1,2,3):
            for a in arms: table.get(lambda: fit(name, n, seed, a, best[a], test if args.final else dev), 'accuracy', part='test' if args.final else 'development', set=name, arm=a, lr=best[a], draw=seed)

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('rates','run'))
    p.add_argument('--sets', default=','.join(data))
    args = p.parse_args()
    quiet()
    logging.disable(logging.INFO)
    main(args)
