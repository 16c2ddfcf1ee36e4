"""Rare classes: 1, 2, 5 and 20 % of 1,000 rows, macro F1 and average precision of the rare class, where rows weigh the same and where classes do (`balanced`)

    FASTFORMERS_DATA=... python benchmarks/rare.py run                        # development rows
    FASTFORMERS_DATA=... python benchmarks/rare.py run --shares 1,2,5 --final # test rows, once
    python benchmarks/rare.py table [--final]                                 # what the rows say

Sets: `fear`, comments of GoEmotions with the label fear or without it; `sst2`, where the positive phrases are the rare class. The test rows are as they come for `fear` (1.4 % of 5,427) and for `sst2` the sentences of its development file with every tenth positive one (about 9 %); development rows are kept out of the training files.
A fifth of the labelled rows is held out by the arms that train a network. `leaderboard` has four minutes, and its row names the winner. Development rows hold more rare ones than training, so the table has the macro F1 at the share of training beside that of the rows as they are. Finished rows are in results/rare/rows.jsonl, and a second call goes on."""
import sys
from classify import Rows as Table
from common import *

def fear():
    train,dev,test = (read(o) for o in data_files('goemotions/train.csv.gz', 'goemotions/dev.csv', 'goemotions/test.csv'))
    return [o.assign(label=np.where(o.labels.str.split(';').map(lambda l: 'fear' in l), 'fear', 'other'))[['text','label']] for o in (train,dev,test)]

def sst2():
    train,test = map(read, data_files('sst2/train.csv.gz', 'sst2/dev.csv'))
    train = train[~train.text.isin(test.text)].drop_duplicates('text').sample(frac=1, random_state=0)
    def skewed(o): return o[(o.label=='negative') | (np.arange(len(o))%10==0)]
    return train[4000:], skewed(train[:4000]), skewed(test)

sets = {'fear':(fear, 'fear'), 'sst2':(sst2, 'positive')}

def draw(train, rare, share, seed, n=1000):
    "Draw `n` rows, of which `share` percent are of the class `rare`"
    k = round(n*share/100)
    few,many = train[train.label==rare].sample(k, random_state=seed),train[train.label!=rare].sample(n-k, random_state=seed)
    return pd.concat([few, many]).sample(frac=1, random_state=seed).reset_index(drop=True)

def words(df, weights, **kwargs):
    from fastformers.inference.baseline import TextBaseline
    return TextBaseline.fit(df.text, df.label, class_weights=weights, **kwargs)

def stage(df, weights, **kwargs):
    from fastformers.learner.save import as_predictor
    from fastformers.ulmfit.stage import fine_tune_classifier
    return as_predictor(fine_tune_classifier(df, 'minilm', class_weights=weights, **kwargs).learner)

def board(df):
    from fastformers.compare.leaderboard import leaderboard
    res = leaderboard(df, minutes=4, log=lambda o: None)
    return res.best, dict(winner=res.winner, table=res.table.reset_index().to_dict('records'))

# `by default` is what `fine_tune_classifier(df, 'minilm')` does since 30 November: balanced, and the rarer class is answered as often as the rows have it
arms = {'constant':lambda df: words(df, None, max_terms=0), 'TF-IDF':lambda df: words(df, None), 'TF-IDF, balanced':lambda df: words(df, 'balanced'),
        'frozen probe':lambda df: stage(df, 'equal', epochs=0), 'frozen probe, balanced':lambda df: stage(df, 'balanced', epochs=0),
        'as typed':lambda df: stage(df, 'equal'), 'as typed, balanced':lambda df: stage(df, 'balanced'), 'by default':lambda df: stage(df, None), 'leaderboard':board}

def figures(predictor, test, rare):
    from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
    scores,at = predictor.scores(test.text.tolist()),predictor.labels.index(rare)
    found,true = np.array([predictor.labels[i] for i in predictor.task.decide(scores)])==rare,(test.label==rare).to_numpy()
    how = dict(zero_division=0.)
    return dict(f1_macro=f1_score(true, found, average='macro'), average_precision=average_precision_score(true, scores[:,at]),
                recall=recall_score(true, found, **how), precision=precision_score(true, found, **how), rows=len(test), rare_rows=int(true.sum()))

def run(args):
    quiet()
    logging.disable(logging.INFO)
    table = Table(results/'rare', part='test' if args.final else 'development', **circumstances(args)['versions'])
    for seed in map(int, args.draws.split(',')):
        for share in map(float, args.shares.split(',')):
            for name in args.sets.split(','):
                read_parts,rare = sets[name]
                train,dev,test = read_parts()
                test = test if args.final else pd.concat([dev[dev.label==rare], dev[dev.label!=rare].sample(700, random_state=0)])
                rows = draw(train, rare, share, seed)
                for k in args.arms.split(';') if args.arms else arms:
                    def make():
                        start = time.process_time()
                        p,facts = made if isinstance(made := arms[k](rows), tuple) else (made,{})
                        got = {a:round(float(v), 4) for a,v in figures(p, test, rare).items()}
                        return got | facts | dict(cpu_seconds=round(time.process_time()-start), commit=commit, processor=processor())
                    table.get(make, 'f1_macro', set=name, arm=k, share=share, draw=seed)

def at_share(o):
    "Macro F1 of a row's recall and false alarms where rare texts have the share of training"
    s,hit = o.share/100,o.recall
    alarms = hit*o.rare_rows*(1/o.precision-1)/(o.rows-o.rare_rows) if o.precision else 0.
    errors = (1-s)*alarms+s*(1-hit)
    return sum(2*k/(2*k+errors) for k in (s*hit, (1-s)*(1-alarms)))/2

def table(args):
    rows = pd.DataFrame(json.loads(l) for l in (results/'rare'/'rows.jsonl').read_text().splitlines())
    rows = rows[rows.part==('test' if args.final else 'development')]
    rows['at_share'] = [at_share(o) for o in rows.itertuples()]
    print('| set | rare rows | arm | draws | macro F1 | at that share | average precision | recall | precision | CPU s |\n|'+'---|'*10)
    for (name,share,k),o in rows.groupby(['set','share','arm'], sort=False):
        print(f'| {name} | {share:g} % | {k} | {len(o)} | '+' | '.join(f'{o[c].mean():.3f}' for c in ('f1_macro','at_share','average_precision','recall','precision'))+f' | {o.cpu_seconds.mean():.0f} |')

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('run','table'))
    p.add_argument('--draws', default='1,2')
    p.add_argument('--shares', default='1,2,5,20')
    p.add_argument('--sets', default='fear,sst2')
    p.add_argument('--arms', default='', help='with ; between them')
    args = p.parse_args()
    run(args) if args.do=='run' else table(args)
