"""Similarity of sentences: the cosine of vectors without training, and three ways to read a pair

    FASTFORMERS_DATA=... python benchmarks/vectors.py                # dev rows of STS-B and SICK; a minute
    FASTFORMERS_DATA=... python benchmarks/vectors.py --final        # and the test rows
    FASTFORMERS_DATA=... python benchmarks/vectors.py --part pairs --work DIR --seeds 42    # fine-tuning on 1,000 pairs of STS-B; dev rows

Spearman's correlation with people's scores, in %. Nothing is chosen: the pooling is that of `Predictor.vectors`, the rate that of `classifier_learner`.
"""
import numpy as np
from classify import Rows, last_only
from common import *

sets,networks = {'STS-B':'stsb','SICK':'sick'},('minilm','wiki-mini')
origin.update({f'{d}/{o}.csv':f'{d}, as CSV; see the citations in this folder' for d in sets.values() for o in ('train','dev','test')})
both,n_train,epochs,bs = ['text_a','text_b'],1000,3,16
ways = { # name -> how a pair is read, pooling of the head
    'together':('together','concat'), 'siamese, [u, v, |u-v|]':('siamese','concat'), 'siamese, cosine':('siamese','mean'), 'both orders':('both_orders','concat')}

def spearman(a, b):
    from scipy.stats import spearmanr
    return round(100*float(spearmanr(a, b).statistic), 2)

def without_training(part):
    "Spearman's correlation of each network, and of TF-IDF, on the rows `part`"
    from sklearn.feature_extraction.text import TfidfVectorizer
    from fastformers.inference.predictor import from_hf
    res = {}
    for name,d in sets.items():
        rows,train = [read(o) for o in data_files(f'{d}/{part}.csv', f'{d}/train.csv')]
        words = TfidfVectorizer(sublinear_tf=True).fit([*train.text_a, *train.text_b])
        a,b = (words.transform(rows[c]) for c in both)
        res[f'TF-IDF, {name}'] = spearman(np.asarray(a.multiply(b).sum(1)).ravel(), rows.score)
        for o in networks:
            a,b = (from_hf(o, device='cpu').vectors(rows[c]) for c in both)
            res[f'{o}, {name}'] = spearman((a*b).sum(1), rows.score)
    return res

def fine_tuned(way, seed):
    "Spearman's correlation on the dev rows of STS-B after training on some of its training rows"
    from fastformers.ulmfit.stage import fine_tune_classifier
    train,dev = [read(o) for o in data_files('stsb/train.csv','stsb/dev.csv')]
    df = pd.concat([train.sample(n_train, random_state=0).assign(is_valid=False), dev.assign(is_valid=True)], ignore_index=True)
    pairing,pool = ways[way]
    learn = fine_tune_classifier(df.astype({'score':float}), 'minilm', text_col=both, label_col='score', pairing=pairing, pool=pool,
                                 max_len=128, bs=bs, epochs=epochs, seed=seed, cbs=last_only()).learner
    with learn.no_bar(): pred,y = learn.get_preds()
    return {'validation':spearman(pred.view(-1), y.view(-1))}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--part', choices=('cosine','pairs'), default='cosine')
    p.add_argument('--work', type=Path, default=Path('runs/vectors'), help='directory of what is under way')
    args = p.parse_args()
    quiet()
    logging.getLogger('fastformers').setLevel(logging.ERROR)
    if args.part=='cosine':
        figures = {'validation Spearman %':without_training('dev'), **({'test':{'test Spearman %':without_training('test')}} if args.final else {})}
        config = dict(networks=networks)
    else:
        seeds,rows = [int(o) for o in args.seeds.split(',')],Rows(args.work, n_train=n_train, epochs=epochs, bs=bs)
        got = {o:[rows.get(lambda: fine_tuned(o, s), way=o, seed=s) for s in seeds] for o in ways}
        figures = {'validation Spearman %':{k:stat([o['validation'] for o in v]) for k,v in got.items()}, 'minutes':{k:stat([o['minutes'] for o in v]) for k,v in got.items()}}
        config = dict(ways=ways, n_train=n_train, epochs=epochs, bs=bs, seeds=seeds)
    print(json.dumps(figures, indent=1))
    save('vectors' if args.part=='cosine' else 'vectors_pairs', args, config, figures, args.final)

if __name__=='__main__': main()
