"What the benchmark scripts share: data with checksums, results with their circumstances, a TF-IDF baseline, reads of test sets on record"
import argparse, hashlib, json, logging, os, platform, subprocess, sys, time
from pathlib import Path
import numpy as np, pandas as pd

here = Path(__file__).parent
results = here/'results'

origin = {
    'trec/train.csv': 'nltk/nltk_data packages/corpora/qc.zip, as CSV text,label,fine_label',
    'clinc150/train.csv.gz': 'CLINC150 (Larson et al. 2019), as CSV text,domain,intent',
    'clinc150/oos_val.csv': 'CLINC150 (Larson et al. 2019), 100 texts of no intent, as CSV text',
    'clinc150/oos_test.csv': 'CLINC150 (Larson et al. 2019), 1,000 texts of no intent, as CSV text',
    'trec/test.csv': 'nltk/nltk_data packages/corpora/qc.zip, as CSV text,label,fine_label',
    'agnews/train_10k.csv.gz': 'AG News (Zhang et al. 2015), 10,001 of its training rows, as CSV text,label',
    'imdb/train.csv.gz': 'Large Movie Review Dataset v1.0 (Maas et al. 2011), as CSV text,label,rating,id,movie',
    'imdb/test.csv.gz': 'Large Movie Review Dataset v1.0 (Maas et al. 2011), as CSV text,label,rating,id,movie',
    'imdb/unsup.csv.gz': 'Large Movie Review Dataset v1.0 (Maas et al. 2011), as CSV text,id,movie',
    'wiki_en/train.txt.gz': 'English Wikipedia, plain text: `= Title =`, a paragraph a line, blank line between articles',
    'wiki_en/valid.txt.gz': 'as above, other articles',
    'wiki_es/train.txt.gz': 'Spanish Wikipedia, plain text: `= Title =`, a paragraph a line, blank line between articles',
    'qa_en/tydiqa_train.csv.gz': 'TyDi QA gold passages (Clark et al. 2020), English training part, as CSV context,question,answer_text,answer_start',
    'qa_en/mlqa_dev.csv.gz': 'MLQA development set, English (Lewis et al. 2020), as CSV context,question,answer_text,answer_start',
    'fakenews_es/train.csv.gz': 'jpposadas/FakeNewsCorpusSpanish train.xlsx, as CSV text,headline,label,...',
    'fakenews_es/dev.csv.gz': 'jpposadas/FakeNewsCorpusSpanish development.xlsx, as CSV text,headline,label,...',
    'fakenews_es/test.csv.gz': 'jpposadas/FakeNewsCorpusSpanish test.xlsx, as CSV text,headline,label,...'}

def _sums(root):
    f = root/'SHA256SUMS'
    return {name.strip().lstrip('*./'):h for h,name in (l.split(None, 1) for l in f.read_text().splitlines() if l.strip())} if f.exists() else {}

def data_files(*names):
    "Paths of data files under FASTFORMERS_DATA; prints what is needed and exits with 2 when that is unset or something is missing"
    root = Path(os.environ.get('FASTFORMERS_DATA', '/nonexistent'))
    if missing := [n for n in names if not (root/n).is_file()]:
        print('Set FASTFORMERS_DATA to a directory with these files (SHA256SUMS beside them is checked):')
        for n in names: print(f"  {n:26} {'missing' if n in missing else 'found':8} {origin[n]}")
        sys.exit(2)
    sums = _sums(root)
    for n in names:
        if n in sums and (got := hashlib.sha256((root/n).read_bytes()).hexdigest())!=sums[n]: sys.exit(f'{n}: sha256 is {got}, expected {sums[n]}')
    return [root/n for n in names]

def read(path): return pd.read_csv(path, keep_default_na=False)

def tfidf_error(train, valid):
    "Error of TF-IDF uni- and bigrams with logistic regression, in %"
    from fastformers.learner.evaluate import tfidf_scores
    return 100*(1-tfidf_scores(train, valid).mean())

def git(*args): return subprocess.run(['git', *args], capture_output=True, text=True, cwd=here).stdout.strip()

commit = git('rev-parse','--short','HEAD') # of the code that runs, not of what is committed meanwhile

def processor(): return next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), platform.processor()) if Path('/proc/cpuinfo').exists() else platform.processor()

def precision():
    "Number format in which networks train and predict here"
    from fastformers.models.fast_cpu import bf16_faster, number_format
    how = number_format('auto', 'cpu')
    return how if how!='auto' else 'bf16' if bf16_faster() else 'fp32'

def circumstances(args):
    from fastformers.inference.stage_json import versions
    return {'date':time.strftime('%Y-%m-%d'), 'commit':commit, 'command':' '.join(['python', f'benchmarks/{Path(sys.argv[0]).name}', *('DIR' if Path(o).is_absolute() else o for o in sys.argv[1:])]),
            'processor':processor(), 'cores':os.cpu_count(), 'versions':versions()}

def save(name, args, config, figures, final=False):
    "Write `figures` to results/`name`.json; a read of the test set also goes on record"
    facts = {**circumstances(args), 'config':config, **figures}
    results.mkdir(exist_ok=True)
    text = json.dumps(facts, indent=1, default=str)
    (results/f'{name}.json').write_text(text+'\n')
    if final:
        line = {k:facts[k] for k in ('date','commit','command')} | {'config':hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12], **figures.get('test',{})}
        with open(results/'test_reads.jsonl', 'a') as f: f.write(json.dumps(line, default=str)+'\n')
    for part,errors in (('validation',figures.get('validation error %')), *figures.get('test',{}).items()):
        if isinstance(errors, dict): print(f'\n{part}', *(f'  {k:36} {v["mean"]} ± {v["sd"]}' if isinstance(v, dict) and 'mean' in v else f'  {k:36} {v}' for k,v in errors.items()), sep='\n')
    for o in figures.get('gains', []): print(o['says'])

def parser(doc):
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', datefmt='%H:%M:%S')
    p = argparse.ArgumentParser(description=doc)
    p.add_argument('--final', action='store_true', help='read the test set, once, and put it on record')
    p.add_argument('--seeds', default='42,43,44', help='comma-separated')
    p.add_argument('--out', default=None, help='keep the run directory here')
    return p

def quiet():
    "No progress bars in logs"
    from fastai.basics import defaults
    from fastai.callback.progress import ProgressCallback
    if ProgressCallback in defaults.callbacks: defaults.callbacks.remove(ProgressCallback)

def stat(xs): return {'mean':round(float(np.mean(xs)),2), 'sd':round(float(np.std(xs, ddof=1)),2) if len(xs)>1 else None, 'each':[round(float(x),2) for x in xs]}
