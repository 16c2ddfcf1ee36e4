"""The sealed table: what the defaults do on sets that nobody has looked at, read once a release

    python benchmarks/sealed.py DIR            # DIR/NAME/train.csv and DIR/NAME/test.csv, columns text and label
    python benchmarks/sealed.py DIR --table    # what the rows say

Nothing is chosen here, so nothing can be fitted to these sets: `--labels` rows are drawn as they come from each train.csv, three draws, and at most 2,000 of test.csv are scored. The code has to be committed. A set that was read with this version of the package is not read again: another reading needs another version. Beside test stands what the run itself printed, on held-out rows. Rows are in results/sealed/rows.jsonl."""
import argparse
from classify import Rows as Table
from common import *
from fastformers.inference.stage_json import versions

def words(df, test):
    from fastformers.inference.baseline import TextBaseline
    return TextBaseline.fit(df.text, df.label, characters=True), {}

def stage(df, test, **kwargs):
    from fastformers.learner.save import as_predictor
    from fastformers.ulmfit.stage import fine_tune_classifier
    res = fine_tune_classifier(df, 'minilm', refit=True, **kwargs)
    return as_predictor(res.learner), dict(held_out=round(float(res.score.mean()), 4), said=res.interval())

arms = {'words and parts of words':words, 'frozen probe':lambda df,test: stage(df, test, epochs=0), 'as typed':stage}

def run(args):
    if git('status','--porcelain','--','../fastformers'): sys.exit('the package has changes that are not committed; commit them, then read the sealed sets')
    v = versions()
    table = Table(results/'sealed')
    for seed in (1,2,3):
        for at in sorted(o.parent for o in Path(args.dir).glob('*/train.csv')):
            train,test = (read(at/o).astype({'label':str})[['text','label']] for o in ('train.csv','test.csv'))
            test = test.sample(min(len(test), 2000), random_state=0)
            train = train[~train.text.isin(test.text)]
            rows = train.sample(min(args.labels, len(train)), random_state=seed).reset_index(drop=True)
            for name,fit in arms.items():
                def make():
                    start = time.process_time()
                    predictor,facts = fit(rows, test)
                    cpu = round(time.process_time()-start)
                    right = [str(o['label'])==l for o,l in zip(predictor(test.text.tolist()), test.label)]
                    return dict(accuracy=round(float(np.mean(right)), 4), rows=len(test), cpu_seconds=cpu, commit=commit, processor=processor(), versions=v) | facts
                table.get(make, 'accuracy', set=at.name, arm=name, labels=args.labels, draw=seed, version=v['fastformers'])

def table(args):
    d = pd.DataFrame(Table(results/'sealed').all)
    print('| set | version | arm | draws | test | held out | core seconds |\n'+'|---'*7+'|')
    for (name,version,arm),o in d.groupby(['set','version','arm'], sort=False):
        held = '' if 'held_out' not in o or o.held_out.isna().all() else f'{100*o.held_out.mean():.1f}'
        print(f'| {name}, {o.labels.iloc[0]} | {version} | {arm} | {len(o)} | {100*o.accuracy.mean():.1f} | {held} | {o.cpu_seconds.mean():.0f} |')

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('dir')
    p.add_argument('--labels', type=int, default=300)
    p.add_argument('--table', action='store_true')
    args = p.parse_args()
    quiet()
    (table if args.table else run)(args)
