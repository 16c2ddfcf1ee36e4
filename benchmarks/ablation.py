"""ULMFiT's parts one by one (Q5), MiniLM on TREC-6 and on a sample of IMDb: what does each buy? Validation only

    FASTFORMERS_DATA=... python benchmarks/ablation.py --work DIR            # 2,500 questions, 1,000 reviews, 128 tokens, three seeds; the same command goes on after it was stopped

The whole is a pretrained body, masked LM on the domain's texts (TREC: the training questions, four passes; IMDb: 10,000 unlabelled reviews, the first 95 words of each, one pass), gradual unfreezing by two groups, rates that fall by a factor of 1.4 a group (2.6 of the
paper is for four groups; 1.4^7 is about 2.6^2.5), slanted triangular rates, concat pooling. Each row but the first takes one of them away, the last but one all but pretraining, at a rate for everything at once, the last pretraining too.
"""
import numpy as np, pandas as pd
import stage2, trec_adapt
from classify import Rows, train
from common import *

whole = dict(epochs=4, bs=32, lr=5e-4, max_len=128, schedule='by_two', discr=1.4, anneal='slanted_triangular', pool='concat')
plain = dict(schedule='full_tune', discr=1., anneal='one_cycle', pool='cls', lr=2e-4)
arms = {
    'the whole':{},
    'without stage 2':dict(stage_2=False),
    'without discriminative rates':dict(discr=1.),
    'without gradual unfreezing':dict(schedule='full_tune'),
    'one-cycle in place of slanted triangular':dict(anneal='one_cycle'),
    'first token in place of concat pooling':dict(pool='cls'),
    'plain fine-tuning':dict(stage_2=False, **plain),
    'plain fine-tuning, without pretraining':dict(stage_2=False, pretrained=False, **plain),
}
ulmfit = {'no pretraining':(5.63,10.67), 'with':(5.00,5.69), 'LM: none':(6.99,6.38), 'LM: full':(5.86,6.54), 'LM: + discr':(5.55,6.36), 'LM: + stlr':(5.00,5.69), # IMDb, TREC-6
          'classifier from scratch':(9.93,13.36), 'full':(6.87,6.86), 'last layer':(6.49,16.09), 'chain-thaw':(5.39,6.71), 'freez + discr + stlr':(5.00,5.69)}

def trec():
    df = trec_adapt.load()[0]
    few = pd.concat([df[~df.is_valid].sample(2500, random_state=0), df[df.is_valid]], ignore_index=True)
    return few, few.text[~few.is_valid].tolist(), dict(epochs=4, seq_len=64)

def reviews():
    train,valid,_,unsup = stage2.imdb()
    df = pd.concat([stage2.sample(train, 1000, 0).assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)
    return df, [' '.join(o.split()[:95]) for o in pd.Series(unsup).sample(10_000, random_state=0)], dict(epochs=1, seq_len=128)

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/ablation'), help='directory of what is under way')
    args = p.parse_args()
    seeds,table = [int(o) for o in args.seeds.split(',')],{}
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    from functools import partial
    from fastformers.callback import schedule as schedules
    from fastformers.ulmfit.stage import fine_tune_lm
    schedules.by_two = partial(schedules.gradual_unfreeze, by=2)
    for name,load in (('TREC-6',trec), ('IMDb',reviews)):
        df,texts,lm = load()
        work = args.work/name
        rows = Rows(work)
        if not (work/'lm'/'stage.json').exists(): fine_tune_lm(texts, 'minilm', work/'lm', bs=32, lr=1e-3, drop_mult=0., valid_pct=.02, resume=str(work/'checkpoints'), **lm)
        def row(arm, seed):
            o = {**whole, **arms[arm]}
            start,settings = 'minilm' if not o.get('stage_2', True) else work/'lm',{k:v for k,v in o.items() if k!='stage_2'}
            return rows.get(lambda: {'validation':train(df, seed, start, **settings)}, arm=arm, seed=seed, **o)['validation']
        table[name] = {arm:stat([row(arm, s) for s in seeds]) for arm in arms} | {'TF-IDF + logistic regression':stat([tfidf_error(df[~df.is_valid], df[df.is_valid])])}
        print(f'\n{name}, validation error %, {(~df.is_valid).sum()} and {df.is_valid.sum()} rows', *(f"  {k:44} {v['mean']:6.2f} ± {v['sd'] or 0:.2f}" for k,v in table[name].items()), sep='\n')
    save('ablation', args, dict(whole=whole, arms=arms, seeds=seeds), {'error % by data':table, "ULMFiT's own, IMDb and TREC-6, %":ulmfit})

if __name__=='__main__': main()
