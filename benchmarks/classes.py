"""What classes are called (few labels a class, with and without names), and texts that belong to no class

    FASTFORMERS_DATA=... python benchmarks/classes.py names --draws 1,2            # development rows
    FASTFORMERS_DATA=... python benchmarks/classes.py few --draws 1,2,3 --labels 10,40,160,400
    FASTFORMERS_DATA=... python benchmarks/classes.py few --labels 40,300 --arms 'as typed, names;as typed, names and 3,000 texts'
    FASTFORMERS_DATA=... python benchmarks/classes.py unknown --draws 1,2
    FASTFORMERS_DATA=... python benchmarks/classes.py more --draws 1
    FASTFORMERS_DATA=... python benchmarks/classes.py price --draws 1
    FASTFORMERS_DATA=... python benchmarks/classes.py names --draws 1,2,3 --final  # test rows, once; `unknown` likewise
    python benchmarks/classes.py table [--final]                                   # what the rows say

`names`: so many labelled rows of each class, none at all with 0; `names and texts` has 10,000 texts of training without their labels, or as many as there are. `intents` are the 150 of CLINC150, `intents77` those of `compare.py`; in `numbers` they are called 0, 1, 2, ..., which says nothing; `trec` has codes (ABBR, DESC, ...), `trec50` those of its 50 fine labels; `agnews` is a set on which nothing was chosen.
`few`: so many labelled rows as they come, names, and texts without labels.
`unknown`: a classifier of rows drawn as they come, and texts of no class: the out-of-scope texts of CLINC150 for its domains and its 150 intents, for the other sets the texts of one class that training does not see. AUROC of texts of no class against the others, and how many are caught where 5 % of the others give a false alarm; for `unknown=.05` the share of false alarms that was got. `unlabelled texts kept` is the same network, which keeps 5,000 unlabelled texts beside its rows; `as typed, --unlabelled` trains on them too. `none of these` (not in the list of arms) labels half of the texts of no class as such, and asks the others.
`more`: the frozen probe of 140 intents, 5,000 rows, of which its directory keeps 2,000; ten intents are added by `add_class`, with 10 or 30 texts each, or a probe of all rows is fitted anew.
`price`: seconds of `unknown=.05` over those of the same call without it, of 1,000 texts in turn, and megabytes of what a directory keeps, with MiniLM and with other numbers of width 768.
Of `names` and `--unlabelled` the classifier is the one that `fastformers classify` writes, in the end trained on all rows; of the others it is trained on four fifths, the rest calibrates. Finished rows are in results/classes/rows.jsonl, and a second call goes on."""
import tempfile
from classify import Rows as Table
from common import *
from compare import clinc, held, intents77

def intents(): return [o.assign(label=o.intent) for o in clinc()]
def numbers():
    train,*others = intents()
    at = {k:i for i,k in enumerate(np.random.default_rng(0).permutation(sorted(train.label.unique())))}
    return [o.assign(label=o.label.map(at)) for o in (train,*others)]
def trec(): return held('trec/train.csv', 'trec/test.csv', 500)
def trec50(): return [o.assign(label=o.fine_label) for o in trec()]
kinds = dict(ABBR='abbreviation', DESC='description or definition', ENTY='entity, thing', HUM='human, person', LOC='location', NUM='number')
def described(): return [o.assign(label=o.label.map(kinds)) for o in trec()]
def moods(): return held('sst2/train.csv.gz', 'sst2/dev.csv', 1000)
def agnews(): return held('agnews/train_10k.csv.gz', 'agnews/test.csv.gz', 1000)

named = dict(domains=clinc, intents=intents, intents77=intents77, numbers=numbers, trec=trec, trec50=trec50, agnews=agnews, described=described, moods=moods)

def trained(df, **kwargs):
    "The predictor that `fastformers classify` writes"
    from fastformers.inference.predictor import from_hf
    from fastformers.ulmfit.stage import fine_tune_classifier
    with tempfile.TemporaryDirectory() as tmp:
        fine_tune_classifier(df[['text','label']], 'minilm', f'{tmp}/classifier', **dict(refit=True) | kwargs)
        return from_hf(f'{tmp}/classifier')

def from_no_label(df, texts=()):
    from fastformers.inference.names import from_names
    return from_names(sorted(df.label.unique()), unlabelled=texts)

n_texts = {'names and 300 texts':300, 'names and texts':10_000}
name_arms = dict.fromkeys(['names alone', *n_texts], from_no_label) | {'frozen probe':lambda df: trained(df, epochs=0, names=[]), 'frozen probe, names':lambda df: trained(df, epochs=0),
             'as typed, no names':lambda df: trained(df, names=[]), 'as typed':trained}

def names(args):
    table = Table(results/'classes', part='test' if args.final else 'development', **circumstances(args)['versions'])
    for seed in map(int, args.draws.split(',')):
        for name in (args.sets or 'intents,numbers,trec,trec50,agnews').split(','):
            train,dev,test = named[name]()
            test = test if args.final else dev.sample(min(len(dev), 1000), random_state=0)
            for n in map(int, args.labels.split(',')):
                shuffled = train.sample(frac=1, random_state=seed)
                rows = shuffled.groupby('label', sort=False).head(max(n, 1)).reset_index(drop=True) # a class of one row stays
                for k in args.arms.split(';') if args.arms else name_arms:
                    if (n==0)!=k.startswith('names '): continue
                    def make():
                        start = time.process_time()
                        p = name_arms[k](rows, *([shuffled.text[:n_texts[k]].tolist()] if k in n_texts else []))
                        spent = time.process_time()-start
                        answers = [o['label'] for o in p(test.text.tolist())]
                        right = np.mean([str(a)==str(b) for a,b in zip(answers, test.label)])
                        return dict(accuracy=round(float(right), 4), rows=len(test), cpu_seconds=round(spent), commit=commit, processor=processor())
                    table.get(make, 'accuracy', what='names', set=name, arm=k, labels=n, draw=seed)

def few(args):
    "Labels as they come: logistic regression on frozen vectors with names as rows, and near the means of classes, without and with texts"
    from fastformers.inference.baseline import fit_linear
    from fastformers.inference.names import VectorClassifier, fit_vectors, names_say, read_names, repeated
    from fastformers.label.vectors import TextVectors
    from fastformers.tasks.core import SingleLabel
    table,vectors = Table(results/'classes', part='development', **circumstances(args)['versions']),TextVectors()
    for seed in map(int, args.draws.split(',')):
        for name in (args.sets or 'domains,agnews,intents77,described,moods').split(','):
            train,dev,_ = named[name]()
            dev,train = dev.sample(min(len(dev), 1000), random_state=0),train.sample(frac=1, random_state=seed)
            names,words = sorted(train.label.astype(str).unique()),TextVectors(pool=train.text[:10_000])
            for n in map(int, args.labels.split(',')):
                rows = train[:n]
                y = rows.label.astype(str).tolist()
                def parts(of, k=0): # vectors of rows, names, unlabelled texts and development rows
                    x,called,more,at = (of([*o]).astype(np.float32) for o in (rows.text, read_names(names).values(), train.text[n:n+k], dev.text))
                    return x, dict(zip(names, called)), more, at
                def rows_of_names():
                    x,called,_,at = parts(vectors)
                    more = repeated([k for k in names if y.count(k)<10], y, len(names)) if names_say(x, y, called) else []
                    both = np.stack([*x, *(called[k] for k in more)])
                    return VectorClassifier(names, *fit_linear(both, np.array([names.index(o) for o in y+more]), SingleLabel(names), 30))(at)
                def near(k, of=vectors):
                    x,called,more,at = parts(of, k)
                    return fit_vectors(x, y, called, more)(at)
                arms = {'linear model, names':rows_of_names, 'near means':lambda: near(0)} | {f'near means, {k:,} texts':lambda k=k: near(k) for k in (1000,3000)}
                arms['near means, 3,000 texts, words'] = lambda: near(3000, words) # words of 10,000 texts
                typed = {'as typed, names':{}, 'as typed, names and 3,000 texts':dict(unlabelled=train.text[n:n+3000].tolist())}
                for k in args.arms.split(';') if args.arms else arms:
                    def make():
                        start = time.process_time()
                        if k in typed: found = [str(o['label']) for o in trained(rows, names=names, **typed[k])(dev.text.tolist())]
                        else: found = arms[k]()
                        return dict(accuracy=round(float((np.array(found)==dev.label.astype(str)).mean()), 4), rows=len(dev), cpu_seconds=round(time.process_time()-start), commit=commit, processor=processor())
                    table.get(make, 'accuracy', what='few', set=name, arm=k, labels=n, draw=seed)

def out_of_scope():
    train,dev,test = clinc()
    return train, dev, test, *(read(o).text for o in data_files('clinc150/oos_val.csv', 'clinc150/oos_test.csv'))

def without(parts, label):
    "Parts for training, development and test without a class, and its texts of the last two"
    return *(o[o.label!=label] for o in parts), *(o[o.label==label].text for o in parts[1:])

def intents_and_others():
    train,dev,test,*odd = out_of_scope()
    return *(o.assign(label=o.intent) for o in (train,dev,test)), *odd

foreign = {'domains':(300, out_of_scope), 'intents':(1500, intents_and_others), 'trec':(300, lambda: without(trec(), 'LOC')), 'agnews':(400, lambda: without(agnews(), 'Sports'))}

def figures(novel, strange, asked=.05):
    "AUROC, and the share of texts of no class caught at a share of false alarms, for novelty of texts that belong to a class and of others"
    from sklearn.metrics import roc_auc_score
    y = np.r_[np.zeros(len(novel)), np.ones(len(strange))]
    return dict(auroc=round(float(roc_auc_score(y, np.r_[novel, strange])), 4), caught=round(float((strange>np.quantile(novel, 1-asked)).mean()), 4))

def unknown(args):
    from fastformers.learner.save import as_predictor, kept_texts
    from fastformers.ulmfit.stage import fine_tune_classifier
    table = Table(results/'classes', part='test' if args.final else 'development', **circumstances(args)['versions'])
    for seed in map(int, args.draws.split(',')):
        for name in (args.sets or 'domains,trec,agnews').split(','):
            n,read_parts = foreign[name]
            train,dev,test,odd_dev,odd_test = read_parts()
            known,odd = (test,odd_test) if args.final else (dev.sample(min(len(dev), 1000), random_state=0),odd_dev)
            known,odd = known.text.tolist(),odd.tolist()
            shuffled = train.sample(frac=1, random_state=seed)
            rows,texts = shuffled[:n][['text','label']],shuffled.text[n:n+5000].tolist()
            def both(p): # novelty and false alarms at unknown=.05
                new,strange = p.novelty(known),p.novelty(odd)
                return figures(new, strange) | {'false_alarms':round(float((new>=.95).mean()), 4), 'caught_at_05':round(float((strange>=.95).mean()), 4)}
            made = {}
            def once(): # the network of the first three arms
                if not made: made[0] = fine_tune_classifier(rows, 'minilm').learner
                return made[0]
            def none_of_these(): # half of the foreign texts are labelled, the others asked; beside it the same without them
                df = pd.concat([rows, pd.DataFrame(dict(text=odd[::2], label='none of these'))])
                learn = fine_tune_classifier(df.sample(frac=1, random_state=seed), 'minilm').learner
                p = as_predictor(learn)
                p.kept = kept_texts(learn, 5000)
                def distances(): return [p.kept.distance(p.vectors(o)) for o in (known, odd[1::2])]
                new,strange = p.novelty(known),p.novelty(odd[1::2])
                got = figures(*distances()) | {'false_alarms':round(float((new>=.95).mean()), 4), 'caught_at_05':round(float((strange>=.95).mean()), 4)}
                p.kept.foreign = None
                return got | {f'{a}_without':v for a,v in figures(*distances()).items()} | dict(strange=len(strange))
            def arm(k):
                if k=='none of these': return none_of_these()
                if k=='as typed, --unlabelled': return both(trained(rows, unlabelled=texts))
                p = as_predictor(once())
                if k=='highest probability': return figures(*(1-p.scores(o).max(1).values.numpy() for o in (known,odd)))
                p.kept = kept_texts(once(), 5000, texts if k=='unlabelled texts kept' else ())
                return both(p)
            for k in args.arms.split(';') if args.arms else ('highest probability','labelled rows alone','unlabelled texts kept','as typed, --unlabelled'):
                def make(): return dict(known=len(known), strange=len(odd)) | arm(k) | dict(commit=commit, processor=processor())
                table.get(make, 'auroc', what='unknown', set=name, arm=k, draw=seed)

def more(args):
    table = Table(results/'classes', part='test' if args.final else 'development', **circumstances(args)['versions'])
    train,dev,test = intents()
    test = test if args.final else dev
    for seed in map(int, args.draws.split(',')):
        new = np.random.default_rng(seed).permutation(sorted(train.label.unique()))[:10]
        old = train[~train.label.isin(new)].sample(5000, random_state=seed)
        def right(p):
            ok = np.array([o['label'] for o in p(test.text.tolist())])==test.label.values
            return dict(accuracy=round(float(ok.mean()), 4), old=round(float(ok[~test.label.isin(new)].mean()), 4))
        def before(): return right(trained(old, epochs=0))
        def anew(texts): return right(trained(pd.concat([old, texts]), epochs=0))
        def added(texts):
            p = trained(old, epochs=0)
            start = time.process_time()
            for k,o in texts.groupby('label'): p.add_class(k, o.text.tolist())
            return dict(cpu_seconds=round(time.process_time()-start, 1)) | right(p)
        for k,f in {'140 classes':before, 'added':added, 'anew':anew}.items():
            for n in (0,) if f is before else (10,30):
                texts = train[train.label.isin(new)].groupby('label').sample(max(n, 1), random_state=seed)
                def make(): return (f() if f is before else f(texts)) | dict(commit=commit, processor=processor())
                table.get(make, 'accuracy', what='more', arm=k, labels=n, draw=seed)

def price(args):
    from fastformers.inference.novelty import Kept
    from fastformers.learner.save import as_predictor, kept_texts
    from fastformers.ulmfit.stage import fine_tune_classifier
    table = Table(results/'classes', part='development', **circumstances(args)['versions'])
    def megabytes(kept):
        with tempfile.TemporaryDirectory() as tmp:
            kept.save(tmp)
            return round((Path(tmp)/'kept.safetensors').stat().st_size/1e6, 2)
    for seed in map(int, args.draws.split(',')):
        def make():
            train,dev,_ = clinc()
            shuffled,texts = train.sample(frac=1, random_state=seed),dev.sample(1000, random_state=0).text.tolist()
            learn = fine_tune_classifier(shuffled[:2000][['text','label']], 'minilm', epochs=0).learner
            p = as_predictor(learn)
            p.kept = kept_texts(learn, 5000, shuffled.text[2000:7000].tolist())
            def seconds(**how):
                start = time.process_time()
                p(texts, **how)
                return time.process_time()-start
            seconds()
            each = [(seconds(), seconds(unknown=.05)) for _ in range(9)]
            ratio = [b/a for a,b in each]
            (n,_),(m,n_in) = p.kept.vectors.shape,p.kept.inputs.shape
            wide = Kept(*(np.random.rand(*o).astype(np.float32) for o in ((n, 768), (1000,), (m, 3*768))), p.kept.classes, p.kept.words)
            return dict(ratio=round(float(np.median(ratio)), 4), low=round(min(ratio), 4), high=round(max(ratio), 4), vectors=n, inputs=m,
                        megabytes=megabytes(p.kept), megabytes_768=megabytes(wide), commit=commit, processor=processor())
        table.get(make, 'ratio', what='price', draw=seed)

def table(args):
    rows = pd.DataFrame(json.loads(l) for l in (results/'classes'/'rows.jsonl').read_text().splitlines())
    rows = rows[rows.part==('test' if args.final else 'development')]
    print('| set | arm | labels a class | draws | accuracy | CPU s |\n|---|---|---|---|---|---|')
    for (name,n,k),o in rows[rows.what=='names'].groupby(['set','labels','arm'], sort=False):
        print(f'| {name} | {k} | {n:g} | {len(o)} | {o.accuracy.mean():.3f} | {o.cpu_seconds.mean():.0f} |')
    print('\n| labels as they come | arm | labels | draws | accuracy |\n|---|---|---|---|---|')
    for (name,n,k),o in rows[rows.what=='few'].groupby(['set','labels','arm'], sort=False): print(f'| {name} | {k} | {n:g} | {len(o)} | {o.accuracy.mean():.3f} |')
    print('\n| ten classes more | texts each | draws | all 150 | the old 140 | CPU s |\n|---|---|---|---|---|---|')
    for (k,n),o in rows[rows.what=='more'].groupby(['arm','labels'], sort=False):
        print(f"| {k} | {n:g} | {len(o)} | {o.accuracy.mean():.3f} | {o.old.mean():.3f} | {'' if k!='added' else f'{o.cpu_seconds.mean():.1f}'} |")
    for o in rows[rows.what=='price'].itertuples(): print(f'\n`unknown=.05` takes {o.ratio:.3f} ({o.low:.3f} to {o.high:.3f}) of the time, keeps {o.megabytes} MB, at width 768 {o.megabytes_768}')
    print('\n| set | arm | draws | AUROC | caught at 5 % false alarms | `unknown=.05`: false alarms | caught |\n|---|---|---|---|---|---|---|')
    for (name,k),o in rows[rows.what=='unknown'].groupby(['set','arm'], sort=False):
        def mean(c): return '' if c not in o or o[c].isna().all() else f'{100*o[c].mean():.1f}'
        print(f"| {name} | {k} | {len(o)} | {o.auroc.mean():.3f} | {mean('caught')} | {mean('false_alarms')} | {mean('caught_at_05')} |")

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('names','few','unknown','more','price','table'))
    p.add_argument('--draws', default='1,2')
    p.add_argument('--sets', default='', help='with commas')
    p.add_argument('--labels', default='0,1,2,3,5', help='labels a class, with commas')
    p.add_argument('--arms', default='', help='with ; between them')
    args = p.parse_args()
    if args.do!='table':
        quiet()
        logging.disable(logging.INFO)
    dict(names=names, few=few, unknown=unknown, more=more, price=price, table=table)[args.do](args)
