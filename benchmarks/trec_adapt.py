"""TREC-6 with MiniLM: four ways to adapt it (Q1), each at a rate chosen on validation, and the configuration chosen among all

    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR            # rates on one seed, then five seeds; 545 validation questions drawn from train
    FASTFORMERS_DATA=... python benchmarks/trec_adapt.py --work DIR --final    # and the 500 test questions

References are the errors of the NAACL 2019 tutorial on transfer learning (a transformer of its own, not MiniLM), whose settings these are: batches of 16, 3 epochs, adapters of width 32 at ten times the rate, the LM loss at half weight for
6 epochs; the rate is one of three times the tutorial's 6.5e-5 and more, since MiniLM is a fifth of that model. `--work` keeps finished rows: the same command goes on after it was stopped.
"""
import json, time
import numpy as np, pandas as pd
from common import *

lrs = (6.5e-5, 2e-4, 5e-4)
naacl = {'fine-tuning':3.6, 'adapters':4.0, 'gradual unfreezing':5.2, 'with the LM loss':3.4}
arms = {
    'fine-tuning':dict(epochs=3),
    'adapters':dict(epochs=3, width=32, times=10),
    'gradual unfreezing':dict(epochs=3, by=1),
    'with the LM loss':dict(epochs=6, lm=.5),
    'layer decay, 4 epochs, batches of 32':dict(epochs=4, bs=32, discr=1.11),
}

def train(df, test, seed, lr, epochs, bs=16, width=None, times=1, by=None, lm=None, discr=1.):
    "Errors in % on validation, and on `test` unless that is None"
    from fastai.torch_core import set_seed
    from fastformers.adapters import add_adapters
    from fastformers.auxiliary import AuxiliaryLM
    from fastformers.data import classifier_dls
    from fastformers.learner import classifier_learner
    from fastformers.schedules import full_tune, gradual_unfreeze
    from fastformers.training import cpu_bf16
    set_seed(seed)
    dls = classifier_dls(df, 'minilm', bs=bs, seed=seed, device='cpu')
    learn = classifier_learner(dls, 'minilm', cbs=[cpu_bf16(), *([AuxiliaryLM(lm)] if lm else [])])
    if width: add_adapters(learn.model, width)
    with learn.no_logging(): learn.fit_schedule(full_tune if by is None else gradual_unfreeze, lr*times, epochs, discr=discr)
    def error(dl): return 100*(1-float(learn.validate(dl=dl)[1]))
    return {'validation':error(dls.valid), **({} if test is None else {'test':error(dls.test_dl(test, with_labels=True))})}

def main():
    p = parser(__doc__.split('\n')[0])
    p.set_defaults(seeds='42,43,44,45,46')
    p.add_argument('--work', type=Path, default=Path('runs/trec_adapt'), help='directory of what is under way')
    args = p.parse_args()
    train_csv,test_csv = data_files('trec/train.csv', 'trec/test.csv')
    from fastformers.data import split_rows
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    df,test = read(train_csv)[['text','label']], read(test_csv)[['text','label']]
    df['is_valid'] = np.isin(np.arange(len(df)), split_rows(df, None, .1, 0, df.label)[1])
    args.work.mkdir(parents=True, exist_ok=True)
    rows,seeds = args.work/'rows.jsonl',[int(o) for o in args.seeds.split(',')]
    def done(): return [json.loads(l) for l in rows.read_text().splitlines()] if rows.exists() else []
    def row(arm, lr, seed, test=None):
        for o in reversed(done()):
            if (o['arm'],o['lr'],o['seed'])==(arm,lr,seed) and (test is None or 'test' in o): return o
        start = time.time()
        o = dict(arm=arm, lr=lr, seed=seed, **train(df, test, seed, lr, **arms[arm]), minutes=round((time.time()-start)/60, 2))
        with rows.open('a') as f: f.write(json.dumps(o)+'\n')
        print(o, flush=True)
        return o
    grid = {arm:{lr:row(arm, lr, seeds[0])['validation'] for lr in lrs} for arm in arms}
    best = {arm:min(o, key=o.get) for arm,o in grid.items()}
    res = {arm:[row(arm, best[arm], s, test if args.final else None) for s in seeds] for arm in arms}
    chosen = min(res, key=lambda o: np.mean([i['validation'] for i in res[o]]))
    print(f'\nvalidation error %, seed {seeds[0]}, by rate', *(f"  {arm:38} "+'  '.join(f'{lr:g}: {e:.2f}' for lr,e in o.items()) for arm,o in grid.items()), f'\nchosen on validation: {chosen}', sep='\n')
    def errors(part): return {f'{arm}, {best[arm]*arms[arm].get("times",1):g}':stat([o[part] for o in v]) | ({'reference':naacl[arm]} if arm in naacl else {}) for arm,v in res.items()}
    save('trec_adapt', args, dict(arms=arms, lrs=lrs, seeds=seeds), {'by rate':grid, 'chosen':chosen, 'minutes':sum(o['minutes'] for o in done()), 'validation error %':errors('validation'),
                                                                 **({'test':{'test error %':errors('test')}} if args.final else {})}, args.final)

if __name__=='__main__': main()
