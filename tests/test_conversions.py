"What Python's ecosystem passes is converted once: numbers, tables, texts and networks of other libraries, at every door"
import logging, re
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from fastai.data.block import CategoryBlock, DataBlock
from fastai.data.transforms import GrandparentSplitter, get_text_files, parent_label
from fastai.metrics import accuracy
from fastformers.callback.schedule import full_tune
from fastformers.compare.curve import label_curve
from fastformers.compare.leaderboard import leaderboard
from fastformers.interpret.probes import layer_probes
from fastformers.label.forecast import standing
from fastformers.label.session import LabelSession
from fastformers.learner.save import as_predictor
from fastformers.data.block import HFTextBlock, classifier_dls, lm_dls
from fastformers.data.labels import as_frame
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
from fastformers.interpret.checks import checks
from fastformers.interpret.slices import conflicting_duplicates, label_issues, slices
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.mlm import MLM
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok
from fastformers.text.encode import HFTokenizer
from fastformers.text.train_tokenizer import train_tokenizer
from fastformers.ulmfit.read import test_frames as frames_of_test
from fastformers.ulmfit.recipe import LMConfig, ModelConfig, RunConfig, TaskConfig, as_recipe
from fastformers.ulmfit.run import ulmfit
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm, pretrain_lm
from test_contracts_common import quiet

df,tok,cfg = tiny_df(),tiny_tok(),tiny_arch('bert', num_hidden_layers=1)
short = dict(epochs=.3, precision='fp32')
def network(**kw): return quiet(classifier_learner(classifier_dls(df, tok, device='cpu'), cfg, **kw))
def pairs(): return quiet(classifier_learner(classifier_dls(tiny_pairs(), tok, ['text_a','text_b'], device='cpu'), cfg))
def written(learn, path): learn.fit(1); return learn.to_hf(path)

@pytest.fixture(scope='module')
def arch(tmp_path_factory): # a directory with a network and its tokenizer
    return lm_learner(lm_dls(df, tok, device='cpu'), cfg).save_encoder(tmp_path_factory.mktemp('arch')/'lm')

# ---- numbers

kinds = dict(np64=lambda v: (np.float64 if isinstance(v, float) else np.int64)(v), np32=lambda v: (np.float32 if isinstance(v, float) else np.int32)(v),
             zero_d=np.array, torch=torch.tensor, text=str)
numbers = dict(
    classify=(lambda a, p, **kw: fine_tune_classifier(df, cfg, tok=tok, path=p, head_init='random', **short|kw), dict(lr=1e-3, seed=1, max_len=32, drop_mult=.5, aux_lm=.5)),
    language_model=(lambda a, p, **kw: fine_tune_lm(df, cfg, tok=tok, path=p, **short|kw), dict(lr=1e-3, seed=1, seq_len=32, mask_rate=.2)),
    pretrain=(lambda a, p, **kw: pretrain_lm(df, tok=tok, config=cfg, path=p, **short|kw), dict(lr=1e-3, seed=1)),
    classifier_dls=(lambda a, p, **kw: written(quiet(classifier_learner(classifier_dls(df, tok, device='cpu', **dict(max_len=64)|kw), cfg)), p), dict(max_len=32, bs=8, seed=1, windows=2)),
    lm_dls=(lambda a, p, **kw: lm_learner(lm_dls(df, tok, device='cpu', **kw), cfg).save_encoder(p), dict(seq_len=32, bs=8, seed=1, valid_pct=.3, max_tokens=500)),
    classifier_learner=(lambda a, p, **kw: written(network(**kw), p), dict(lr=1e-3, drop_mult=.5)),
    lm_learner=(lambda a, p, **kw: lm_learner(lm_dls(df, tok, device='cpu'), cfg, **kw).save_encoder(p), dict(lr=1e-3, drop_mult=.5)),
    fit_schedule=(lambda a, p, **kw: network().fit_schedule(full_tune, **kw), dict(lr=1e-3, epochs=1, discr=1.1, wd=.1)),
    tokenizer=(lambda a, p, **kw: HFTokenizer(tok, **kw)('a fine film'), dict(max_len=32, windows=1, overlap=0)),
    train_tokenizer=(lambda a, p, **kw: train_tokenizer(df.text.tolist(), path=p, **kw), dict(vocab_sz=500)),
    leaderboard=(lambda a, p, **kw: leaderboard(df, path=p, log=lambda o: None, entries='TF-IDF', **kw), dict(minutes=1)),
    objective=(lambda a, p, seed=1, **kw: lm_dls(df, tok, MLM(tok, seed=seed), device='cpu').one_batch(), dict(seed=1)))

trains = 'classify','language_model','pretrain','classifier_dls','classifier_learner'
@pytest.mark.parametrize('door,name', [(k,o) for k,(_,args) in numbers.items() for o in args])
def test_a_number_of_any_library_is_a_number(door, name, arch, tmp_path):
    f,args = numbers[door]
    for k,new in kinds.items() if door not in trains else [(k,kinds[k]) for k in ('np64','text')]: f(arch, tmp_path/k, **{name:new(args[name])})

@pytest.mark.parametrize('seeds', [np.arange(1,3), (np.int64(1),np.int64(2)), '1,2'], ids=lambda o: type(o).__name__)
def test_seeds_of_any_library_are_seeds(seeds, arch, tmp_path):
    small = dict(classifier=dict(epochs=.2), lm=dict(objective='none'), run=dict(compare=None))
    assert RunConfig(seeds=seeds).seeds==(1,2) and ulmfit(df, arch=arch, recipe=small, seeds=seeds, path=tmp_path/'run').path
    board = leaderboard(df, archs=[arch], seeds=seeds, path=tmp_path/'board', log=lambda o: None, entries=['TF-IDF','frozen probe'], minutes=5)
    assert board.seeds==[1,2] and set(board.scored)=={'TF-IDF','frozen probe'}
    curve = label_curve(df, seeds=seeds, sizes=np.array([20]), arch=arch, entries=['TF-IDF','frozen probe'])
    assert len(curve.rows)==4

def test_settings_are_converted_where_they_are_made():
    c = as_recipe(dict(classifier=dict(lr='1e-4', bs=np.float64(8), max_len=np.int64(32), calibrate=np.bool_(True), refit='no', hidden_states=np.array([1,2]), epochs=torch.tensor(2)),
                       lm=dict(lr=np.logspace(-5,-3,3)[0]), run=dict(seeds=np.arange(2), archs='a,b'), data=dict(text_col=['a','b']), model=dict(gradient_checkpointing='no')))
    t = c.classifier
    assert [type(o) for o in (t.lr,t.bs,t.max_len,t.calibrate,t.refit,c.lm.lr)]==[float,int,int,bool,bool,float] and not t.refit
    assert (t.hidden_states,c.run.seeds,c.run.archs,c.data.text_col,c.model.gradient_checkpointing)==((1,2),(0,1),('a','b'),'a,b',False)
    for cls,k,v in ((TaskConfig,'bs',16.5), (TaskConfig,'lr','fast'), (LMConfig,'seq_len',None), (RunConfig,'seeds',['x']), (TaskConfig,'epochs',{}), (ModelConfig,'precision','bf61')):
        with pytest.raises(ValueError, match=f'`{k}`: expected '): cls(**{k:v})

# ---- tables

class Frame: # of a library that converts to pandas, such as polars, pyarrow, modin or cudf
    def __init__(self, df): self.df = df
    def to_pandas(self): return self.df.copy()
class Column: # as `datasets` 4 and later give a column
    def __init__(self, o): self.o = list(o)
    def __len__(self): return len(self.o)
    def __getitem__(self, i): return self.o[i]
    def __iter__(self): return iter(self.o)

rows = df.to_dict('records')
tables = dict(frame=lambda df: Frame(df), records=lambda df: df.to_dict('records'), columns=lambda df: df.to_dict('list'), generator=lambda df: (o for o in df.to_dict('records')),
              arrays=lambda df: {k:df[k].to_numpy() for k in df}, nullable=lambda df: df.convert_dtypes())
texts = dict(column=lambda o: Column(o), tuple=tuple, generator=iter, extension=lambda o: pd.array(o, dtype='string'), array=np.array, keys=lambda o: dict.fromkeys(o).keys())
@pytest.mark.parametrize('kind', tables)
def test_a_table_of_any_library_is_a_frame(kind, arch, tmp_path):
    new,few,more = tables[kind],*(df[:30].assign(text=lambda d: d.text+end) for end in (' so it is',' or not'))
    assert as_frame(new(df)).label.tolist()==df.label.tolist()
    assert classifier_dls(new(df), tok, device='cpu').vocab==['negative','neutral','positive'] and len(lm_dls(new(df), tok, device='cpu').train)
    for test in (new(few), {'a':new(few), 'b':new(few)})[:1+(kind=='generator')]:
        stage = fine_tune_classifier(new(df), arch, test=test, epochs=0, unlabelled=new(more[['text']]))
        assert stage.test['accuracy']>=0 and len(stage.test_score)==30*(1+(isinstance(test, dict) and 'b' in test))
    board = leaderboard(new(df), unlabelled=new(more[['text']]), test=new(few), log=lambda o: None, entries='TF-IDF', seeds=1)
    assert len(board.y)==30
    if kind in ('frame','generator'): assert ulmfit(new(df), new(more[['text']]), new(few), arch=arch, recipe=dict(classifier=dict(epochs=0), lm=dict(epochs=.2), run=dict(compare=None))).info['test rows']==30
    base = TextBaseline.fit(df.text.tolist(), df.label.tolist())
    assert len(slices(base, new(df))) and len(checks(base, new(df), which='typo')) and label_issues(None, new(df)) is not None and conflicting_duplicates(new(df)) is not None
    if kind=='frame': assert len(base.predict_frame(new(df)))==60

cells = dict(tensor=torch.tensor, array=np.array, number=np.int64)
@pytest.mark.parametrize('kind', cells)
def test_a_label_of_any_library_is_a_label(kind, arch):
    "A tensor is equal to itself alone, so each was a class of its own"
    new = df.assign(label=pd.Series([cells[kind](i%2) for i in range(len(df))], dtype=object))
    assert as_frame(new).label.tolist()==as_frame(dict(text=df.text, label=torch.arange(len(df))%2)).label.tolist()==[0,1]*30
    assert classifier_dls(new, tok, device='cpu').vocab==[0,1]
    assert fine_tune_classifier(new, arch, test=new[:9].assign(text=lambda d: d.text+' so'), epochs=0).learner.model.task.labels==[0,1]
    assert len(leaderboard(new, log=lambda o: None, entries='TF-IDF', seeds=1).task.labels)==2
    assert TextBaseline.fit(df.text.tolist(), new.label).labels==[0,1]
    several = df.assign(label=[[cells[kind](1+i%2), cells[kind](3)] for i in range(len(df))])
    assert classifier_dls(several, tok, device='cpu').vocab==[1,2,3]
    assert len(label_issues(None, new)) and len(slices(TextBaseline.fit(df.text.tolist(), [0,1]*30), new))

@pytest.mark.parametrize('kind', texts)
def test_texts_of_any_library_are_texts(kind, arch):
    new = texts[kind]
    assert as_frame(new(df.text.tolist())).text.tolist()==df.text.tolist()
    assert len(lm_dls(new(df.text.tolist()), tok, device='cpu').train_ds)
    assert fine_tune_lm(new(df.text.tolist()), arch, **short).losses and len(train_tokenizer(new(df.text.tolist()), vocab_sz=500))
    assert fine_tune_classifier(df, arch, unlabelled=new([o+' so it is' for o in df.text]), epochs=0).score is not None

@pytest.mark.parametrize('bad', ['reviews.csv', b'x', {'a'}, {'train':df}, 7, None, Path('x.csv')], ids=repr)
def test_what_is_no_table_is_refused(bad):
    with pytest.raises(TypeError, match='`data` is a DataFrame, a list of texts'): as_frame(bad)

def test_tables_of_the_real_libraries(tmp_path):
    pa,pl,datasets = map(pytest.importorskip, ('pyarrow','polars','datasets'))
    plain = df.to_dict('list')
    ds = datasets.Dataset.from_dict(plain)
    for o in (pa.table(plain), pl.DataFrame(plain), pl.DataFrame(plain).lazy(), ds, ds.to_iterable_dataset(), ds[:], pa.table(plain).to_batches()[0]): assert as_frame(o).equals(as_frame(plain))
    for o in (ds['text'], pl.Series(plain['text']), pa.array(plain['text']), pa.chunked_array([plain['text']])): assert as_frame(o).text.tolist()==plain['text']
    with pytest.raises(TypeError, match='one part'): as_frame(datasets.DatasetDict(train=ds))

def test_paths_are_items_of_a_block(tmp_path):
    for i,o in df.iterrows():
        at = tmp_path/('valid' if o.is_valid else 'train')/o.label/f'{i}.txt'
        at.parent.mkdir(parents=True, exist_ok=True); at.write_text(o.text, 'utf-8')
    dls = DataBlock((HFTextBlock(tok),CategoryBlock), get_items=get_text_files, get_y=parent_label, splitter=GrandparentSplitter()).dataloaders(tmp_path, bs=8, device='cpu')
    learn = quiet(classifier_learner(dls, cfg))
    learn.fit(1)
    assert learn.predict(at)[0]==learn.predict(df.text.iloc[-1])[0]

def test_a_list_of_one_column_is_the_column(arch):
    more = [o+' so it is' for o in df.text]
    assert fine_tune_classifier(df, arch, text_col=['text'], unlabelled=more, epochs=0).score is not None
    assert pretrain_lm(df, text_col=['text'], size=1, vocab_sz=500, **short).losses

# ---- networks

def test_a_network_of_transformers_is_an_arch(arch, tmp_path):
    from transformers import AutoModel, AutoModelForSequenceClassification
    body,whole = AutoModel.from_pretrained(arch),AutoModelForSequenceClassification.from_config(cfg)
    for hf in (body,whole):
        learn = network() if hf is None else quiet(classifier_learner(classifier_dls(df, tok, device='cpu'), hf))
        want,got = (dict(o.named_parameters()) for o in (hf.base_model, learn.model.body))
        assert all(torch.equal(p, want[k]) for k,p in got.items()) and got is not want
        want = next(iter(want.values())).clone()
        learn.fit(1); learn.to_hf(tmp_path/type(hf).__name__)
        assert torch.equal(next(hf.base_model.parameters()), want)       # the network itself does not train
    assert quiet(lm_learner(lm_dls(df, tok, device='cpu'), body)).model.loaded.loaded
    assert fine_tune_classifier(df, body, epochs=0).metrics and fine_tune_lm(df, body, **short|dict(epochs=4)).losses   # its tokenizer is beside it
    assert fine_tune_classifier(df, whole, tok=tok, **short).metrics
    for o in (torch.nn.Linear(2, 2), 7, None):
        with pytest.raises(TypeError, match='`arch` is a hub id'): classifier_learner(classifier_dls(df, tok, device='cpu'), o)

def test_xlnet_has_its_objective():
    stage = fine_tune_lm(df, tiny_arch('xlnet', num_hidden_layers=1), tok=tiny_tok('xlnet'), **short)
    from fastformers.papers.xlnet import PLM
    assert isinstance(stage.learner.dls.train.after_batch.fs[-1], PLM) and all(o==o for o in stage.losses)

# ---- messages

same = df.drop(columns='is_valid').assign(text='The same words.')

@pytest.mark.parametrize('f,match', [
    (lambda a: fine_tune_classifier(df, a, learning_rate=1e-3), "'learning_rate' is no argument of `fine_tune_classifier`; did you mean lr"),
    (lambda a: fine_tune_classifier(df, a, per_device_train_batch_size=8), 'did you mean bs'), (lambda a: fine_tune_lm(df, a, num_train_epochs=1), 'did you mean epochs'),
    (lambda a: classifier_dls(df, a, batch_size=8), 'did you mean bs'), (lambda a: classifier_dls(df, a, max_length=8), 'did you mean max_len'),
    (lambda a: lm_dls(df, a, max_length=8), 'did you mean seq_len'), (lambda a: classifier_learner(classifier_dls(df, a), a, learning_rate=1), 'did you mean lr'),
    (lambda a: as_recipe(dict(classifier=dict(batch_size=8))), 'did you mean bs'), (lambda a: fine_tune_classifier(df, a, model_name='x'), 'did you mean arch'),
    (lambda a: fine_tune_classifier(df, a, metrics=[]), r"a learner takes it: `classifier_learner\(dls, arch, metrics=...\)`, then `fit_plan"),
    (lambda a: leaderboard(df, loss_func=None), 'arch, loss_func=...'), (lambda a: fine_tune_classifier(df, a, compute_metrics=len), 'write `metrics=...` in'),
    (lambda a: fine_tune_lm(df, a, loss_fn=len), 'write `loss_func=...` in'), (lambda a: ulmfit(df, minutes=1), "settings of a stage: recipe={'classifier':{'minutes':...}}"),
    (lambda a: ulmfit(df, model=a), 'did you mean arch'), (lambda a: leaderboard(df, seed=1), 'did you mean seeds'),
    (lambda a: fine_tune_classifier(df.assign(a='x', b='y'), a, text_col=['text','a','b']), 'a pair of columns, got 3: text, a, b; join several'),
    (lambda a: lm_dls(df.assign(a='x', b='y'), a, text_col=['text','a','b']), 'got 3: text, a, b'),
    (lambda a: fine_tune_classifier(df.assign(label=[None]*40+df.label.tolist()[40:]), a), '40 of 60 rows have no label.*train on their texts too.*in Python `unlabelled=`'),
    (lambda a: classifier_learner(df, a), '`dls` are DataLoaders, as from `classifier_dls`.*got a DataFrame'), (lambda a: lm_learner(a, lm_dls(df, a)), 'as from .*`lm_dls`, got a PosixPath'),
    (lambda a: classifier_learner(lm_dls(df, a), a), 'these dls have no labels; build them with `classifier_dls`'), (lambda a: lm_learner(classifier_dls(df, a), a), 'no objective; build them with `lm_dls`'),
    (lambda a: from_hf(None), 'expected a directory, a hub id or a shipped name, got None'), (lambda a: from_hf(network()), 'got Learner'), (lambda a: leaderboard(df, archs=[network().model]), 'shipped name, got TextClassifier'),
    (lambda a: layer_probes(a, df.assign(label=df.text.str.len()/7)), 'expected one class a row, got regression'),
    (lambda a: standing(df, target=90), '`target` 90 is out of range; expected a share from 0 to 1'), (lambda a: LabelSession(['x','y'], ['a','b'], target=90), '`target` 90 .* from 0 to 1'),
    (lambda a: LabelSession(['x','y'], ['a','b'], worth='much'), '`worth`: expected a number'), (lambda a: LabelSession(['x','y'], labels=['a','b']), '.labels. is no argument of `LabelSession`'),
    (lambda a: fine_tune_classifier(df, a, resume=True), '`resume` is a directory for checkpoints, got True'), (lambda a: fine_tune_lm(df, a, resume=True), '`resume` is a directory'),
    (lambda a: fine_tune_classifier(df, a, output_dir='x'), 'did you mean path'), (lambda a: fine_tune_classifier(df, a, random_seed=1), 'did you mean seed'), (lambda a: fine_tune_lm(df, a, max_len=8), 'did you mean seq_len'),
    (lambda a: fine_tune_classifier(df, a, score='f1'), 'the score f1 is for one of two classes, there are 3; choose f1_macro'), (lambda a: leaderboard(df, score='precision', archs=a), 'choose precision_macro'),
    (lambda a: ulmfit(df, arch=a, recipe=dict(classifier=dict(score='f1'))), 'choose f1_macro'),
    (lambda a: classifier_dls(df, a, label_col=['label']), "hold 'negative', expected 0 and 1; a column of names is label_col='label'"),
    (lambda a: classifier_dls(df.assign(b=df.label), a, label_col=['label','b']), r"expected 0 and 1; a column of names is label_col='label'"),
    (lambda a: classifier_dls(df.assign(label=[{'choices':['a','b']}, *df.label[1:]]), a), r"a list; take one entry of each dict: \[o\['choices'\] if isinstance\(o, dict\) else o for o in df\['label'\]\]"),
    *((lambda a, o=o: network().predict(o), r'(?s)predict answers one text, .*trained on single texts.*for several: learn.get_preds\(dl=learn.dls.test_dl\(texts\)\)') for o in (['a','b'], ['a','b','c'], ('a','b','c'), df.text, df.text[:1], df[['text']])),
    (lambda a: pairs().predict(['a','b','c']), 'predict answers one text, .*trained on pairs of texts'),
    *((lambda a, o=o: network(**o), f"`{[*o][0]}` takes functions or objects.*got the name 'f1'; names are for `score`") for o in (dict(metrics='f1'), dict(metrics=[accuracy,'f1']), dict(loss_func='f1'), dict(opt_func='f1'))),
    *((lambda a, o=o: lm_learner(lm_dls(df, a), a, **{o:'f1'}), f"`{o}` takes .*got the name 'f1'") for o in ('metrics','opt_func')),
    (lambda a: fine_tune_classifier(df, a, epochs=0, head='hf'), '`epochs` 0 is for the probe alone, and there is none; pass `head_init` probe, or more `epochs`'), (lambda a: fine_tune_lm(df, a, epochs=0), 'there is none; pass more `epochs`'),
    (lambda a: classifier_dls(df.assign(label='1,5'), a, task='regression'), "'label' holds '1,5', expected a number such as 12.5"),
    (lambda a: classifier_dls(df.assign(a='1,5', b=2.), a, label_col=['a','b'], task='regression'), "'a' holds '1,5', expected a number"),
    (lambda a: classifier_dls(same, a), 'all 60 rows have the same text, and equal ones stay in one part'), (lambda a: lm_dls(same, a), 'all 60 rows have the same text'),
    (lambda a: classifier_dls(same.assign(text=df.text, who='Ann'), a, group_col='who'), "all 60 rows have the same 'who'"),
    *((lambda a, f=f, v=v: f(df.drop(columns='is_valid'), a, valid_pct=v), '`valid_pct` .* is out of range; expected a share from 0 to 0.99') for f in (classifier_dls,lm_dls) for v in (20, 1., -.1, np.float32(1.5))),
    *((lambda a, n=n: as_predictor(network())('a film', top_k=n), '`top_k` .* is out of range; expected 1 or more') for n in (0,-1)),
    (lambda a: label_issues(None, df.assign(label=['a;b','a']*30)), 'expected one label a row, got multi .*; check one of several labels in a column of its own'),
    (lambda a: fine_tune_classifier([*zip(df.text, df.label)], a), r"the columns need names: .* pd.DataFrame\(rows, columns="),
    (lambda a: train_tokenizer(df.text.tolist(), vocab_sz=20), '`vocab_sz` 20 is too small for these 60 texts')])
def test_a_message_says_what_to_do(f, match, arch):
    with pytest.raises((TypeError,ValueError), match=match) as e: f(arch)
    assert 'INTERNAL' not in str(e.value)

def test_a_path_is_not_suggested_to_itself(tmp_path):
    (tmp_path/'model').mkdir(); (tmp_path/'gone').symlink_to(tmp_path/'nowhere')
    for f in (lambda: from_hf(tmp_path/'model'), lambda: fine_tune_lm(df, tmp_path/'model'), lambda: as_recipe(tmp_path/'gone')):
        with pytest.raises(OSError) as e: f()
        assert 'did you mean' not in str(e.value)

@pytest.mark.parametrize('cells', [list, tuple, np.array, pd.Series])
def test_test_rows_are_one_table_of_columns_or_several_by_name(cells):
    columns = dict(text=cells(['warm','cold']), label=cells(['a','b']))
    assert frames_of_test(columns).label.tolist()==['a','b']
    assert {k:v.text.tolist() for k,v in frames_of_test(dict(en=columns, de=pd.DataFrame(columns))).items()}=={'en':['warm','cold'], 'de':['warm','cold']}
