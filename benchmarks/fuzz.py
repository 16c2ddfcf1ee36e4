"""Random texts, tables, recipes, labels, settings, files, callbacks, outputs and damaged directories: each ends in a result, or in an error of this package

    python benchmarks/fuzz.py                     # 10,000 cases, some minutes on one thread; needs no data
    python benchmarks/fuzz.py --only recipes --cases 500 --show 20

An error is ours if its last frame is in the package: it says what was expected. Others come from json, pandas or torch, and are listed.
"""
import argparse, gzip, json, logging, os, random, shutil, tempfile, time, traceback, warnings
from collections import Counter
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1', OMP_NUM_THREADS='1', FASTFORMERS_PRECISION='fp32')
warnings.filterwarnings('ignore')
logging.disable(logging.CRITICAL)
import numpy as np, pandas as pd, torch
from hypothesis import HealthCheck, given, settings, strategies as st
import fastformers
from fastai.callback import all as all_callbacks
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.encode import HFTokenizer
from fastformers.text.readers import read_texts
from fastformers.ulmfit import recipe as recipes_page
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.data.rows import Rows

package = str(Path(fastformers.__file__).parent)
char = st.one_of(st.characters(), st.characters(categories=['Cs']), st.sampled_from('\x00\u200f\u202e\ufeff\u2028אبع한😀'))
text = st.one_of(st.text(char, max_size=200), st.sampled_from(['', ' ', '\n', '[MASK] [SEP]', '<pad>', 'nan', 'a'*5000, '😀'*3000, 'word '*20_000]))

def small():
    "Train a tiny classifier, and a linear model on words"
    df = tiny_df()
    dls = classifier_dls(df, tiny_tok(), bs=16, device='cpu')
    return as_predictor(classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), precision='fp32')), TextBaseline.fit(df.text, df.label)

def texts(predictors):
    "Predict texts of all planes, with lone surrogates, right-to-left, and of 100,000 characters"
    def case(ts):
        for p in predictors:
            got = p(ts)
            assert len(got)==len(ts) and all(o['label'] in p.labels and 0<=o['score']<=1.0001 for o in got), got
    return case, st.lists(text, max_size=4)

scalars = st.one_of(text, st.none(), st.just(float('nan')), st.integers(), st.floats(), st.booleans(), st.binary(max_size=5),
                    st.just(pd.NaT), st.datetimes(), st.lists(text, max_size=3), st.just(pd.NA), st.just({}))
columns = st.one_of(*[st.lists(o, min_size=12, max_size=12) for o in (text, st.sampled_from('abc'), st.sampled_from(['a','b',None]), st.integers(0, 3),
                    st.floats(), st.booleans(), st.lists(st.sampled_from('abc'), max_size=3), st.sampled_from(['a;b','b','']), scalars)])
kinds = st.sampled_from(['object','category','string','str','string[pyarrow]',None,None,None])

def tables(_):
    "Make DataLoaders of tables with mixed types, categories, Arrow strings, doubled index and doubled columns"
    def case(a, b, kind_a, kind_b, n, index, double):
        try: df = pd.DataFrame({'text':pd.Series(a[:n], dtype=kind_a), 'label':pd.Series(b[:n], dtype=kind_b)})
        except Exception: return # pandas cannot make it
        if index: df.index = np.arange(len(df))//2
        if double: df = pd.concat([df, df[['text']]], axis=1)
        dls = classifier_dls(df, tiny_tok(), bs=4, device='cpu')
        x,*_ = dls.train.one_batch()
        assert len(x)
    return case, st.tuples(columns, columns, kinds, kinds, st.integers(0, 11).map(lambda n: 12-n), st.booleans(), st.sampled_from([0,0,0,1]))

def recipes(_):
    "Read recipes with changed values, keys and lines"
    lines,folder = Recipe().to_ini().splitlines(),Path(tempfile.mkdtemp())
    values = st.one_of(text.map(lambda o: o[:40]), st.sampled_from(['', 'none', '-1', '0', '1e99', 'nan', 'True', '1,2', '[]', '%(x)s', '${x}', '1e-3', '5']))
    def case(changes):
        own = list(lines)
        for at,how,value in changes:
            i = at%len(own)
            if how=='value' and '=' in own[i]: own[i] = own[i].split('=')[0]+'= '+value
            elif how=='line': own[i] = value
            elif how=='double': own.insert(i, own[i])
            elif how=='drop' and len(own)>1: del own[i]
        (folder/'a.ini').write_bytes('\n'.join(own).encode('utf-8', 'surrogatepass'))
        assert isinstance(read_recipe(folder/'a.ini'), Recipe)
    return case, st.lists(st.tuples(st.integers(0, 10**4), st.sampled_from(['value','value','line','double','drop']), values), min_size=1, max_size=3)

def damage(root, which, how, at, byte):
    "Damage one file of a directory"
    files = sorted(o for o in root.rglob('*') if o.is_file())
    f = files[which%len(files)]
    data = f.read_bytes()
    i = at%max(len(data), 1)
    if how=='json' and f.suffix=='.json':
        try: facts = json.loads(data)
        except ValueError: return # damaged already
        if isinstance(facts, dict) and facts: facts[sorted(facts)[at%len(facts)]] = [None, -1, 'x', [], {}, 1e99][byte%6]
        f.write_text(json.dumps(facts))
        return
    f.unlink()
    if how=='cut': f.write_bytes(data[:i])
    elif how=='flip': f.write_bytes(data[:i]+bytes([data[i]^(byte or 1)])+data[i+1:] if data else b'x')
    elif how=='folder': f.mkdir()
    elif how=='loop': f.symlink_to(f.name)
    elif how=='link': f.symlink_to('/dev/null')

def directories(predictors):
    "Open saved classifiers with missing, cut, changed and linked files"
    root = Path(tempfile.mkdtemp())
    whole = [o.save(root/f'whole{i}') for i,o in enumerate((*predictors, Ensemble(list(predictors))))]
    def case(i, changes):
        d = root/'damaged'
        shutil.rmtree(d, ignore_errors=True)
        shutil.copytree(whole[i], d)
        for o in changes: damage(d, *o)
        p = from_hf(d)
        assert [o['label'] in p.labels for o in p(['a text'])]==[True]
    how = st.sampled_from(['drop','cut','flip','folder','loop','link','json','json'])
    return case, st.tuples(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 99), how, st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=2))

label = st.one_of(*[st.lists(o, min_size=24, max_size=24) for o in (
    st.sampled_from('ab'), st.sampled_from(['007','07','7']), st.sampled_from([0,1,2.5]), st.sampled_from(['1','2','3a',3]), st.sampled_from(['12%','1,5','7']),
    st.lists(st.sampled_from([0,1]), min_size=3, max_size=3), st.lists(st.sampled_from('ab'), max_size=3), st.sampled_from(['a|b','b','a']), st.sampled_from(['Food; drink','food']),
    st.sampled_from(['café','cafe\u0301']), st.sampled_from([True,False,None]), st.sampled_from([np.int64(1),np.float32(2),torch.tensor(1)]), scalars)])

def labels(_):
    "Read labels of every kind for training and test, and fit a linear model on them"
    def case(train, test, task):
        df,other = (pd.DataFrame(dict(text=[f'text {i} {o}' for i,o in enumerate(ls)], label=pd.Series(ls, dtype=object))) for ls in (train,test))
        found = Rows(df, task=task).add_test(other).task
        dls = classifier_dls(df, tiny_tok(), bs=8, device='cpu', task=found)
        assert len(dls.train.one_batch())==2
    return case, st.tuples(label, label, st.sampled_from([None,None,None,'single','multi','regression','tags','choice']))

value = st.one_of(scalars, st.sampled_from([np.int64(3), np.float64(1e-3), np.float32(.5), np.bool_(True), np.arange(3), torch.tensor(2), torch.ones(2), '1e-4', '16', '', 'no', -1, 0, 1e99, range(2), [1,2], (1,), Path('x'), pd.Series([1]), {}]))

def options(_):
    "Make sections of a recipe, tokenizers and data with settings of any type"
    sections = [getattr(recipes_page, o) for o in ('RunConfig','DataConfig','ModelConfig','LMConfig','GeneralConfig','TaskConfig')]
    names = {c:sorted(recipes_page.settings(c)) for c in sections}
    def case(which, k, v, door):
        c = sections[which%6]
        k = names[c][k%len(names[c])]
        if door==0: Recipe().replace(**{c.section:{k:v}}).to_ini()
        elif door==1: HFTokenizer(tiny_tok(), **{('max_len','windows','overlap','truncation','pairing')[which%5]:v})('a text')
        elif door==2: classifier_dls(tiny_df(), tiny_tok(), device='cpu', **{('bs','seed','max_len','valid_pct','max_tokens','text_col','label_col','valid_col')[which%8]:v}).train.one_batch()
        else: lm_dls(tiny_df(), tiny_tok(), device='cpu', **{('bs','seed','seq_len','valid_pct','max_tokens','text_col','packing')[which%7]:v}).train.one_batch()
    return case, st.tuples(st.integers(0, 840), st.integers(0, 10**4), value, st.sampled_from([0,0,0,1,2,3]))

def files(_):
    "Read files of all names with all contents"
    folder = Path(tempfile.mkdtemp())
    head = st.sampled_from(['text,label\n', 'text;label\n', ' text ,label\n', '\ufefftext\tlabel\n', '', '[', '{"text": "a"}\n', 'version https://git-lfs.github.com/spec/v1\n', '# comment\n', 'EU B-ORG\n\n'])
    def case(head, lines, ext, encoding, gz):
        data = (head+'\n'.join(lines)).encode(encoding, 'surrogatepass' if encoding!='cp1252' else 'replace')
        f = folder/f'a.{ext}'
        f.write_bytes(gzip.compress(data) if gz else data)
        df = read_texts(f)
        assert len(df) and isinstance(df, pd.DataFrame)
    return case, st.tuples(head, st.lists(st.one_of(text.map(lambda o: o[:80]), st.sampled_from(['a,b','a;b','"a','{"text": 1}','{"text": "b", "label": 0}','a\tb','EU\u00a0x O'])), max_size=6),
                           st.sampled_from(['csv','tsv','jsonl','txt','conll','csv.gz','json','CSV','data']), st.sampled_from(['utf-8','utf-8','utf-8','utf-16','cp1252']), st.booleans())

def callbacks(_):
    "Train with a callback of fastai, evaluate and write"
    root,df = Path(tempfile.mkdtemp()),tiny_df()
    dls = classifier_dls(df, tiny_tok(), bs=30, device='cpu')
    own = 'ShowGraphCallback CSVLogger EarlyStoppingCallback SaveModelCallback ReduceLROnPlateau TerminateOnNaNCallback GradientClip GradientAccumulation ShortEpochCallback CollectDataCallback'.split()
    def case(names, last):
        learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), precision='fp32', path=root, cbs=[getattr(all_callbacks, o)() for o in names])
        with learn.no_logging(): learn.fit(1, 1e-3) # `ShowGraphCallback` asks for the progress bar
        getattr(learn, last)(*[root/'out'][:last!='validate'])
    return case, st.tuples(st.lists(st.sampled_from(own), min_size=1, max_size=3, unique=True), st.sampled_from(['to_hf','save_encoder','validate']))

def outputs(predictors):
    "Write into files, links, pipes and directories of others"
    root = Path(tempfile.mkdtemp())
    def case(kind, i):
        d = root/'place'
        if d.is_symlink() or d.exists() and not d.is_dir(): d.unlink()
        shutil.rmtree(d, ignore_errors=True)
        if kind=='file': d.write_text('mine')
        elif kind=='full': d.mkdir(); (d/'a.txt').write_text('mine')
        elif kind=='link': (root/'real').mkdir(exist_ok=True); d.symlink_to(root/'real')
        elif kind=='loop': d.symlink_to(d.name)
        elif kind=='gone': d.symlink_to(root/'gone'/'far')
        elif kind in ('pipe','below'): os.mkfifo(d)
        at = dict(below=d/'x', long=root/('x'*300), deep=d/'a'/'b', proc=Path('/proc/self/x')).get(kind, d)
        assert from_hf(predictors[i].save(at))('a text')
    return case, st.tuples(st.sampled_from('new file full link loop gone pipe below long deep proc'.split()), st.integers(0, 1))

def outcome(case, args):
    "Run a case and say how it ended"
    try: case(*args)
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        file = '/'.join(Path(last.filename).parts[-2:])
        ours = hasattr(e, '__notes__') or last.filename.startswith(package) and not isinstance(e, (AssertionError,AttributeError,IndexError,KeyError,RecursionError)) and str(e)
        return ('our error' if ours else f'{type(e).__name__} of {file}:{last.lineno}'), f'{type(e).__name__}: {e}'
    return 'result',''

def fuzz(make, n, seed, predictors, show):
    "Run `n` cases of a kind, and count how they ended"
    case,strategy = make(predictors)
    seen,examples,start = Counter(),{},time.time()
    @settings(max_examples=n, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(args):
        how,said = outcome(case, args if isinstance(args, tuple) else (args,))
        seen[how] += 1
        examples.setdefault(how, (said, args))
    from hypothesis import seed as seeded
    seeded(seed)(run)()
    for k,v in seen.most_common():
        if k not in ('result','our error') or show>1: print(f'  {v:5} {k}: {examples[k][0][:150]!r} from {str(examples[k][1])[:show*100]!r}')
    return dict(cases=sum(seen.values()), seconds=round(time.time()-start), result=seen['result'], error=seen['our error'],
                other={k:v for k,v in seen.items() if k not in ('result','our error')})

def main():
    from common import save
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('--cases', type=int, default=10_000)
    p.add_argument('--only', nargs='*', default=['texts','tables','recipes','directories','labels','options','files','callbacks','outputs'])
    p.add_argument('--seed', type=int, default=None)
    p.add_argument('--show', type=int, default=1)
    args = p.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    print('seed', seed)
    predictors,res = small(),{}
    for name in args.only:
        res[name] = fuzz(globals()[name], args.cases//len(args.only), seed, predictors, args.show)
        print(name, res[name], flush=True)
    if args.only==p.get_default('only'): save('fuzz', args, {'cases':args.cases, 'seed':seed}, res)

if __name__=='__main__': main()
