"""IMDb with MiniLM and 1,000 labels at 128 tokens: what does masked LM on 10,000 unlabelled reviews buy?

    FASTFORMERS_DATA=... python benchmarks/imdb.py            # 1,000 validation reviews of other movies
    FASTFORMERS_DATA=... python benchmarks/imdb.py --final    # and a fixed balanced sample of 2,500 test reviews

The configuration is `imdb.ini`. Reviews of `unsup` that occur in the test set are dropped first. The LM stage runs once, the classifiers for each seed.
"""
import numpy as np, pandas as pd, time
from common import *

def sample(df, n, seed): return pd.concat([g.sample(n//2, random_state=seed) for _,g in df.groupby('label')]).sample(frac=1, random_state=seed)

def load(n_train=1000, n_valid=1000, n_unsup=10_000, seed=0):
    "(labelled rows, unlabelled texts, test sample); validation reviews are of movies that training has not"
    paths = data_files('imdb/train.csv.gz', 'imdb/test.csv.gz', 'imdb/unsup.csv.gz')
    train,test,unsup = [read(p) for p in paths]
    movies = np.random.default_rng(seed).permutation(np.array(sorted(train.movie.unique()), dtype=object))
    held = train.movie.isin(set(movies[:len(movies)//5]))
    df = pd.concat([sample(train[~held], n_train, seed).assign(is_valid=False), sample(train[held], n_valid, seed).assign(is_valid=True)], ignore_index=True)
    unsup = unsup[~unsup.text.isin(set(test.text)) & ~unsup.movie.isin(set(df.movie[df.is_valid]))].sample(n_unsup, random_state=seed)
    return df[['text','label','is_valid']], unsup.text.tolist(), sample(test, 2500, seed)[['text','label']].reset_index(drop=True)

def main():
    args = parser(__doc__.split('\n')[0]).parse_args()
    df,unlabelled,test = load()
    from fastformers.ulmfit.recipe import read_recipe
    from fastformers.ulmfit.run import ulmfit
    quiet()
    seeds = [int(o) for o in args.seeds.split(',')]
    recipe = read_recipe(here/'imdb.ini')
    start = time.time()
    report = ulmfit(df, unlabelled, test=test if args.final else None, recipe=recipe, path=args.out, seeds=seeds)
    arms = {k:[s for s in report.stages if s.name==n] for k,n in (('with stage 2','classifier'), ('without','classifier from the general LM'))}
    lm = report.stages[0]
    tr,va = df[~df.is_valid],df[df.is_valid]
    figures = {'minutes':round((time.time()-start)/60,1), 'LM':{'before':lm.before,'after':lm.metrics,'minutes':round(lm.seconds/60,1), **lm.data}, 'gains':report.gains().to_dict('records'),
               'validation error %':{k:stat([100*(1-s.metrics['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(tr,va),2)}}
    if args.final:
        clean = (~test.text.isin(df.text)).to_numpy()
        figures['test'] = {'test error %':{k:stat([100*(1-s.test['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(tr,test),2)},
                           'without rows seen in training':{k:stat([100*(1-s.test_score[clean].mean()) for s in v]) for k,v in arms.items()}, 'such rows':int((~clean).sum())}
    save('imdb', args, {'recipe':recipe.to_ini(here), 'seeds':seeds}, figures, args.final)

if __name__=='__main__': main()
