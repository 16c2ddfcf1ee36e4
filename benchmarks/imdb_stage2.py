"""IMDb with MiniLM: what does masked LM on all unlabelled reviews buy with 100, 500 and 2,000 labels?

    FASTFORMERS_DATA=... python benchmarks/imdb_stage2.py --work DIR            # 1,000 validation reviews of other movies
    FASTFORMERS_DATA=... python benchmarks/imdb_stage2.py --work DIR --final    # and a fixed balanced sample of 2,500 test reviews

`--work` keeps the token store, checkpoints of the language model and finished rows of the table: the same command goes on after it was stopped. Reviews of `unsup` that occur in the test set
or in the validation sample are dropped, and all of movies that validation holds; the language model, as the
classifiers, reads the beginning of each. Settings are below; the classifiers are those of `imdb.ini`, with more epochs where there are few labels.
"""
import json
import numpy as np, pandas as pd
from classify import Rows, last_only
from common import *
from imdb import sample

sizes,epochs = (100,500,2000),{100:10, 500:6, 2000:3}
lm_settings = dict(seq_len=128, bs=32, epochs=1, lr=1e-3, valid_pct=.01, packing='doc-sentences', drop_mult=0., seed=42)
words = 95             # of each review: what the classifiers read of it, 128 tokens
warm,body = .07,.3     # share of the pass for the head alone; rate of the body, as a share of the head's
clf_settings = dict(max_len=128, bs=32, lr=2e-4, discr=1.11)

def load(seed=0, n_valid=1000):
    "(all training reviews but those of held-out movies, validation sample, test sample, beginnings of the unlabelled reviews, their table)"
    train,test,unsup = [read(p) for p in data_files('imdb/train.csv.gz', 'imdb/test.csv.gz', 'imdb/unsup.csv.gz')]
    movies = np.random.default_rng(seed).permutation(np.array(sorted(train.movie.unique()), dtype=object))
    held = train.movie.isin(set(movies[:len(movies)//5]))
    valid = sample(train[held], 2000, seed)
    unsup = unsup[~unsup.text.isin(set(test.text)|set(valid.text)) & ~unsup.movie.isin(set(valid.movie))]
    return train[~held], valid[:n_valid], sample(test, 2500, seed).reset_index(drop=True), beginnings(unsup).text.tolist(), unsup

def schedule_of(warm, body):
    "The head alone for a share `warm` of the time, then all, what is below the head at `body` of its rate"
    from fastformers.callback.schedule import Schedule
    return lambda n: Schedule([[0.]*(n-1)+[1.], [body]*(n-1)+[1.]], [warm,1-warm])

def adapt(work, texts):
    "The directory of stage 2; it is trained in legs, each of which ends in a checkpoint"
    from fastformers.callback.resume import Resume
    from fastformers.text.store import TokenStore
    from fastformers.ulmfit.stage import fine_tune_lm
    if not (work/'lm'/'stage.json').exists():
        store = TokenStore(work/'store') if (work/'store').exists() else TokenStore.build(texts, 'minilm', work/'store')
        fine_tune_lm(store, 'minilm', work/'lm', schedule=schedule_of(warm, body), cbs=Resume(work/'checkpoints', minutes=5), **lm_settings)
    return work/'lm'

def halfway(work, texts):
    "A directory with the mean of the weights before and after stage 2: does it help to have moved less?"
    from transformers import AutoModel, AutoTokenizer
    from fastformers.hub import resolve_arch
    if not (work/'halfway').exists():
        a,b = (AutoModel.from_pretrained(o, add_pooling_layer=False) for o in (resolve_arch('minilm'), adapt(work, texts)))
        old = a.state_dict()
        b.load_state_dict({k:(v+old[k])/2 if v.is_floating_point() else v for k,v in b.state_dict().items()})
        b.save_pretrained(work/'halfway'); AutoTokenizer.from_pretrained(work/'lm').save_pretrained(work/'halfway')
    return work/'halfway'

def classify(arch, train, valid, test, n, seed, final):
    from fastformers.ulmfit.stage import fine_tune_classifier
    df = pd.concat([sample(train, n, seed).assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]
    s = fine_tune_classifier(df, arch, test=test[['text','label']] if final else None, seed=seed, epochs=epochs[n], cbs=last_only(), **clf_settings)
    return {'validation':100*(1-s.metrics['accuracy']), **({'test':100*(1-s.test['accuracy'])} if final else {})}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/imdb_stage2'), help='directory of what is under way')
    p.add_argument('--arms', default='without,with', help='which to run, of without, with, halfway')
    p.add_argument('--sizes', default=','.join(map(str, sizes)), help='numbers of labels')
    p.add_argument('--lm-only', action='store_true', help='train the language model and stop')
    args = p.parse_args()
    quiet()
    rows = Rows(args.work, words=words, lm=lm_settings, warm=warm, body=body, classifier=clf_settings, epochs=epochs)
    train,valid,test,texts,_ = load()
    if args.lm_only: adapt(args.work, texts); return
    seeds = [int(o) for o in args.seeds.split(',')]
    for arm in args.arms.split(','):
        arch = {'with':adapt, 'halfway':halfway}[arm](args.work, texts) if arm!='without' else 'minilm'
        for n in map(int, args.sizes.split(',')):
            for seed in seeds:
                rows.get(lambda: classify(arch, train, valid, test, n, seed, args.final), 'test' if args.final else 'validation', arm=arm, n=n, seed=seed)
    if args.arms==p.get_default('arms'): report(args, pd.DataFrame(rows.all), train, valid, test, seeds, texts)

def beginnings(df): return df.assign(text=[' '.join(o.split()[:words]) for o in df.text])

def report(args, df, train, valid, test, seeds, texts):
    df = df[df.seed.isin(seeds)]
    parts = {'validation':valid, **({'test':test} if args.final else {})}
    table = {part:{n:{**{arm:stat(o[part]) for arm,o in df[(df.n==n) & df[part].notna()].groupby('arm')}, 'TF-IDF + logistic regression':stat([tfidf_error(sample(train, n, s), rows) for s in seeds]),
                       f'TF-IDF on {words} words':stat([tfidf_error(beginnings(sample(train, n, s)), beginnings(rows)) for s in seeds])}
                   for n in sizes} for part,rows in parts.items()}
    for part,o in table.items():
        print(f'\nerror %, {part}', *(f'  {n:5} labels  '+'   '.join(f"{k} {v['mean']:.2f} ± {v['sd']:.2f}" for k,v in arms.items()) for n,arms in o.items()), sep='\n')
    f = args.work/'lm'/'stage.json'
    lm = {k:v for k,v in json.loads(f.read_text()).items() if k in ('metrics','before','seconds','data')} if f.exists() else {}
    flat = {part:{f'{n} labels, {arm}':v for n,arms in o.items() for arm,v in arms.items()} for part,o in table.items()}
    save('imdb_stage2', args, dict(lm=lm_settings, words=words, warm=warm, body=body, classifier=clf_settings, epochs=epochs, seeds=seeds),
         {'unlabelled reviews':len(texts), 'LM':lm, 'validation error %':flat['validation'], **({'test':{'test error %':flat['test']}} if args.final else {})}, args.final)

if __name__=='__main__': main()
