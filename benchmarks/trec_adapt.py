"""TREC-6 with MiniLM: four ways to adapt it (Q1), each at a rate chosen on validation, and the configuration chosen among all

    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR            # rates on one seed, then five seeds; 545 validation questions drawn from train
    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR --final    # and the 500 test questions

References are the errors of the NAACL 2019 tutorial on transfer learning (a transformer of its own, not MiniLM), whose settings these are: batches of 16, 3 epochs, adapters of width 32 at ten times the rate, the LM loss at half weight for
6 epochs; the rate is the tutorial's 6.5e-5 or one of two higher ones, since MiniLM is a fifth of that model. `--work` keeps finished rows: the same command goes on after it was stopped.
"""
import numpy as np
from classify import Rows, train
from common import *

lrs = (6.5e-5, 2e-4, 5e-4)
naacl = {'fine-tuning':3.6, 'adapters':4.0, 'gradual unfreezing':5.2, 'with the LM loss':3.4}
times = {'adapters':10} # the rate
arms = {
    'fine-tuning':dict(epochs=3),
    'adapters':dict(epochs=3, width=32),
    'gradual unfreezing':dict(epochs=3, schedule='gradual_unfreeze'),
    'with the LM loss':dict(epochs=6, lm=.5),
    'layer decay, 4 epochs, batches of 32':dict(epochs=4, bs=32, discr=1.11),
}

def load():
    "(training questions with a tenth of them held out, test questions)"
    from fastformers.data import split_rows
    df,test = [read(o)[['text','label']] for o in data_files('trec/train.csv', 'trec/test.csv')]
    return df.assign(is_valid=np.isin(np.arange(len(df)), split_rows(df, None, .1, 0, df.label)[1])), test

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/trec_adapt'), help='directory of what is under way')
    args = p.parse_args()
    (df,test),rows,seeds = load(),Rows(args.work),[int(o) for o in args.seeds.split(',')]
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    def row(arm, lr, seed, final=False):
        return rows.get(lambda: train(df, test if final else None, seed, lr=lr, **arms[arm]), 'test' if final else 'validation', arm=arm, lr=lr, seed=seed)
    grid = {arm:{lr:row(arm, lr*times.get(arm, 1), seeds[0])['validation'] for lr in lrs} for arm in arms}
    best = {arm:min(o, key=o.get)*times.get(arm, 1) for arm,o in grid.items()}
    res = {arm:[row(arm, best[arm], s, args.final) for s in seeds] for arm in arms}
    chosen = min(res, key=lambda o: np.mean([i['validation'] for i in res[o]]))
    print(f'\nvalidation error %, seed {seeds[0]}, by rate', *(f"  {arm:38} "+'  '.join(f'{lr*times.get(arm, 1):g}: {e:.2f}' for lr,e in o.items()) for arm,o in grid.items()), f'\nchosen on validation: {chosen}', sep='\n')
    def errors(part): return {f'{arm}, {best[arm]:g}':stat([o[part] for o in v]) | ({'reference':naacl[arm]} if arm in naacl else {}) for arm,v in res.items()}
    save('trec_adapt', args, dict(arms=arms, lrs=lrs, times=times, seeds=seeds), {'by rate':grid, 'chosen':chosen, 'minutes':round(sum(o['minutes'] for o in rows.all), 1), 'validation error %':errors('validation'),
                                                                                  **({'test':{'test error %':errors('test')}} if args.final else {})}, args.final)

if __name__=='__main__': main()
