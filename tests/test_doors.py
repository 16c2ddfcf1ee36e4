"From a frame, a dataset, a csv file or a folder: the same rows give the same data, whichever door they come through"
import gzip, inspect
import numpy as np, pandas as pd, pytest, torch
from fastai.data.block import CategoryBlock, DataBlock, MultiCategoryBlock, RegressionBlock
from fastai.data.transforms import ColReader, ColSplitter, RandomSplitter
from fastai.losses import CrossEntropyLossFlat
from fastcore.docments import docments
from sklearn.utils.class_weight import compute_class_weight
from fastformers.data.block import HFTextBlock, class_weights, classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok

small = dict(bs=8, device='cpu')
doors = pytest.mark.parametrize('door', [classifier_dls,lm_dls], ids=lambda o: o.__name__)

def batches(dls): return [[t.tolist() for t in b] for dl in (dls.train,dls.valid) for b in dl]
def same(a, b): return batches(a)==batches(b)

# ---- csv

awkward = {'comma':'good, cheap, near', 'quotes':'he said "never again"', 'line break':'first line\nsecond line\n\nfourth', 'null':'null', 'tab':'a\tb', 'semicolon':'a; b', 'accents':'Schön, café, ñ'}

@doors
@pytest.mark.parametrize('sep', [',',';','\t','|'])
@pytest.mark.parametrize('encoding', ['utf-8','utf-8-sig','cp1252','utf-16'])
def test_csv_is_the_frame_it_was_written_from(door, sep, encoding, tmp_path):
    df = pd.concat([tiny_df()[:20], pd.DataFrame({'text':list(awkward.values()), 'label':'neutral', 'is_valid':False})], ignore_index=True)
    df['text'] = df.text.map(lambda o: o.encode('cp1252','ignore').decode('cp1252'))
    df.to_csv(tmp_path/'r.csv', sep=sep, encoding=encoding, index=False)
    assert same(door.from_csv(tmp_path/'r.csv', tiny_tok(), sep=sep, encoding=encoding, **small), door(df, tiny_tok(), **small))

def test_csv_may_be_compressed_and_have_other_columns(tmp_path):
    df = tiny_df().rename(columns=dict(text='review', label='mood', is_valid='held'))
    (tmp_path/'r.csv.gz').write_bytes(gzip.compress(df.to_csv(index=False).encode()))
    dls = classifier_dls.from_csv(str(tmp_path/'r.csv.gz'), tiny_tok(), text_col='review', label_col='mood', valid_col='held', **small)
    assert same(dls, classifier_dls(tiny_df(), tiny_tok(), **small))

@doors
def test_a_csv_that_is_not_what_was_said_is_refused(door, tmp_path):
    tiny_df().to_csv(tmp_path/'r.csv', sep=';', index=False, encoding='utf-16')
    with pytest.raises(ValueError, match=r"r\.csv is not utf-8.*'utf-16'"): door.from_csv(tmp_path/'r.csv', tiny_tok())
    with pytest.raises(ValueError, match=r"r\.csv: .* is one column; pass sep=';'"): door.from_csv(tmp_path/'r.csv', tiny_tok(), encoding='utf-16')
    with pytest.raises(FileNotFoundError, match=r"rr\.csv does not exist; .* holds r\.csv"): door.from_csv(tmp_path/'rr.csv', tiny_tok())
    (tmp_path/'missing.csv').write_text('text,label,is_valid\nfine,good,False\nbad,,False\nx,good,True\n')
    if door is classifier_dls:
        with pytest.raises(ValueError, match="row 1 has no label in column 'label'"): door.from_csv(tmp_path/'missing.csv', tiny_tok())

@doors
def test_texts_of_digits_in_a_csv_are_texts(door, tmp_path):
    df = tiny_df().assign(text=[f'{i:04}' for i in range(60)])
    df.to_csv(tmp_path/'r.csv', index=False)
    assert same(door.from_csv(tmp_path/'r.csv', tiny_tok(), **small), door(df, tiny_tok(), **small))
    df.rename(columns={'text':'code'}).assign(size=df.text).to_csv(tmp_path/'pairs.csv', index=False)
    assert same(door.from_csv(tmp_path/'pairs.csv', tiny_tok(), text_col=['code','size'], **small), door(df.assign(size=df.text), tiny_tok(), text_col=['text','size'], **small))
    with pytest.raises(ValueError, match="`text_col` 'txt' is not a column; columns are text, label, is_valid; did you mean text"): door.from_csv(tmp_path/'r.csv', tiny_tok(), text_col='txt')

# ---- folders

def write(root, df, parts=True):
    "`df` as text files in `root`/part/label"
    for i,r in enumerate(df.itertuples()):
        d = root/('valid' if r.is_valid else 'train')/r.label if parts else root/r.label
        d.mkdir(parents=True, exist_ok=True)
        (d/f'{i:03}.txt').write_text(r.text, encoding='utf-8')
    return root

def test_folders_of_parts_are_the_frame(tmp_path):
    dls = classifier_dls.from_folder(write(tmp_path, tiny_df()), tiny_tok(), **small)
    df = tiny_df().sort_values('label', kind='stable'); df = pd.concat([df[~df.is_valid], df[df.is_valid]])
    assert same(dls, classifier_dls(df, tiny_tok(), **small)) and len(dls.valid_ds)==15
    assert len(lm_dls.from_folder(tmp_path, tiny_tok(), **small).valid_ds)==15

def test_folders_may_have_other_names(tmp_path):
    write(tmp_path, tiny_df()); (tmp_path/'valid').rename(tmp_path/'test')
    assert len(classifier_dls.from_folder(tmp_path, tiny_tok(), valid='test', **small).valid_ds)==15
    assert len(classifier_dls.from_folder(tmp_path, tiny_tok(), valid_pct=.2, **small).train_ds)<45   # of `train` alone, `test` is left alone
    assert len(classifier_dls.from_folder(tmp_path, tiny_tok(), valid=None, valid_pct=.2, **small).train_ds)<45
    with pytest.raises(FileNotFoundError, match='dev does not exist; .* holds test, train'): classifier_dls.from_folder(tmp_path, tiny_tok(), valid='dev')

def test_folders_of_classes_alone_are_split(tmp_path):
    dls = classifier_dls.from_folder(write(tmp_path, tiny_df(), parts=False), tiny_tok(), valid_pct=.25, **small)
    assert list(dls.vocab)==['negative','neutral','positive'] and len(dls.valid_ds) and len(dls.train_ds)+len(dls.valid_ds)==60

def test_a_language_model_needs_no_classes(tmp_path):
    for i,t in enumerate(tiny_df().text): (tmp_path/f'{i}.txt').write_text(t, encoding='utf-8')
    assert len(lm_dls.from_folder(tmp_path, tiny_tok(), valid_pct=.25, **small).valid_ds)
    with pytest.raises(ValueError, match='expected a folder of .txt files for each label'): classifier_dls.from_folder(tmp_path, tiny_tok())
    with pytest.raises(FileNotFoundError, match='does not exist'): lm_dls.from_folder(tmp_path/'nowhere', tiny_tok())

# ---- frames and datasets

class ClassLabel: names = ['negative','neutral','positive']
class StandIn:
    "The part of a `datasets.Dataset` that is used"
    def __init__(self, df, features=None): self.df,self.features = df,features
    def to_pandas(self): return self.df.copy()

@doors
def test_a_dataset_is_its_frame(door):
    numbers = tiny_df().assign(label=lambda d: d.label.map(ClassLabel.names.index))
    assert same(door(StandIn(tiny_df()), tiny_tok(), **small), door(tiny_df(), tiny_tok(), **small))
    assert same(door(StandIn(numbers, {'label':ClassLabel(), 'text':object()}), tiny_tok(), **small), door.from_df(tiny_df(), tiny_tok(), **small))

def test_a_dataset_without_labels_is_refused():
    with pytest.raises(ValueError, match='row 0 has no label'): classifier_dls(StandIn(tiny_df().assign(label=-1), {'label':ClassLabel()}), tiny_tok())

@doors
def test_a_real_dataset_is_its_frame(door):
    datasets,pa = pytest.importorskip('datasets'),pytest.importorskip('pyarrow')
    def dataset(df, kinds): # with a fingerprint: to compute one is more than some pairs of dill and pyarrow can
        return datasets.Dataset(pa.table(df.to_dict('list'), schema=kinds.arrow_schema), info=datasets.DatasetInfo(features=kinds), fingerprint='reviews')
    kinds = datasets.Features(text=datasets.Value('string'), label=datasets.ClassLabel(names=ClassLabel.names), is_valid=datasets.Value('bool'))
    ds = dataset(tiny_df().assign(label=lambda d: d.label.map(ClassLabel.names.index)), kinds)
    assert ds[0]['label'] in (0,1,2)
    dls = door(ds, tiny_tok(), **small)
    assert same(dls, door(tiny_df(), tiny_tok(), **small))
    with pytest.raises(TypeError, match="got DatasetDict; pass one of its parts: 'train', 'test'"): door(datasets.DatasetDict(train=ds, test=ds), tiny_tok())
    tags = tiny_df().assign(label=lambda d: [[i%2, 2] if i%3 else [i%2] for i in range(60)])
    many = dataset(tags, datasets.Features({**kinds, 'label':datasets.Sequence(datasets.ClassLabel(names=['a','b','c']))}))
    if door is classifier_dls: assert list(door(many, tiny_tok(), **small).vocab)==['a','b','c']

def test_a_language_model_takes_a_list():
    for kind in (list, tuple, np.array, pd.Series): assert same(lm_dls(kind(tiny_df().text.tolist()), tiny_tok(), **small), lm_dls(tiny_df()[['text']], tiny_tok(), **small))

# ---- blocks

def block(y, get_y, x='text', splitter=None): return DataBlock((HFTextBlock(tiny_tok()), y), get_x=ColReader(x), get_y=get_y, splitter=splitter or ColSplitter())

def test_a_block_by_hand_is_the_factory():
    assert same(block(CategoryBlock, ColReader('label')).dataloaders(tiny_df(), **small), classifier_dls(tiny_df(), tiny_tok(), **small))
    assert len(block(CategoryBlock, ColReader('label'), splitter=RandomSplitter(.25, seed=1)).dataloaders(tiny_df(), **small).valid_ds)==15

def test_pairs_come_from_two_columns():
    by_hand = block(CategoryBlock, ColReader('label'), ['text_a','text_b']).dataloaders(tiny_pairs(), **small)
    dls = classifier_dls(tiny_pairs(), tiny_tok(), text_col=['text_a','text_b'], **small)
    assert same(by_hand, dls) and dls.one_batch()[0].segment_ids.max()==1
    new = dls.test_dl([('a man plays','somebody plays')]).one_batch()[0]
    assert (new==by_hand.test_dl(pd.DataFrame({'text_a':['a man plays'], 'text_b':['somebody plays']})).one_batch()[0]).all()

def test_several_labels_come_from_one_column_or_many():
    df = tiny_df().assign(long=lambda d: (d.text.str.len()>60).astype(int), loud=lambda d: d.text.str.contains('!').astype(int))
    joined = df.assign(label=[';'.join(k for k in ('long','loud') if r[k]) for r in df.to_dict('records')])
    by_hand = block(MultiCategoryBlock, ColReader('label', label_delim=';')).dataloaders(joined, **small)
    a,b = classifier_dls(joined, tiny_tok(), **small),classifier_dls(df, tiny_tok(), label_col=['long','loud'], **small)
    assert list(a.vocab)==list(b.vocab)==list(by_hand.vocab)==['long','loud']
    first = batches(a) # a second pass has another order
    assert batches(b)==first and batches(by_hand)==first

def test_a_number_is_predicted_by_hand_or_by_kind():
    df = tiny_df().assign(label=lambda d: d.text.str.len()/10)
    assert same(block(RegressionBlock, ColReader('label')).dataloaders(df, **small), classifier_dls(df, tiny_tok(), **small))

def joined(): return tiny_df().assign(label=[';'.join(n for n,k in (('a',2),('b',3),('c',5)) if i%k==0) for i in range(60)])

def test_flag_columns_are_the_vocab_in_their_order(tmp_path):
    df = tiny_df().assign(z=lambda d: (d.label=='positive').astype(int), never=0, b=lambda d: (d.label=='negative').astype(int))
    dls = classifier_dls(df, tiny_tok(), label_col=['z','never','b'], **small)
    assert list(dls.vocab)==['z','never','b'] and dls.c==3
    assert torch.stack([y for _,y in dls.train_ds]).tolist()==df.loc[~df.is_valid, ['z','never','b']].astype(float).to_numpy().tolist()
    learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1))
    with learn.no_bar(): preds = learn.get_preds()[0]
    learn.to_hf(tmp_path/'out') # what is written names the columns of the predictions as the frame does
    scores = from_hf(tmp_path/'out', device='cpu')(df.text[df.is_valid].tolist(), top_k=None)
    for row,o in zip(preds, scores):
        by_name = {d['label']:d['score'] for d in o}
        assert [by_name[c] for c in ('z','never','b')]==pytest.approx(row.tolist(), abs=1e-5)

# ---- weights

def test_class_weights_are_those_of_scikit_learn():
    df = tiny_df()[lambda d: (d.label!='neutral') | (d.index<20)]
    for dls in (classifier_dls(df, tiny_tok(), **small), block(CategoryBlock, ColReader('label')).dataloaders(df, **small)):
        train = df[~df.is_valid].label.to_numpy()
        assert class_weights(dls).tolist()==pytest.approx(compute_class_weight('balanced', classes=np.array(dls.vocab), y=train))
        assert class_weights(dls).dtype==torch.float32 and len(class_weights(dls))==dls.c

def test_class_weights_go_into_the_loss():
    df = tiny_df()[lambda d: (d.label!='neutral') | (d.index<20)]
    dls = classifier_dls(df, tiny_tok(), **small)
    learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), loss_func=CrossEntropyLossFlat(weight=class_weights(dls)))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert np.isfinite(learn.recorder.losses).all()

def test_class_weights_need_one_class_a_row():
    for df in (tiny_df().assign(label=lambda d: d.label+';x'), tiny_df().assign(label=lambda d: d.text.str.len()/10)):
        with pytest.raises(ValueError, match='needs one class a row; .*pos_weight'): class_weights(classifier_dls(df, tiny_tok(), **small))

# ---- signatures tell the truth

@doors
@pytest.mark.parametrize('name', ['from_csv','from_folder','from_df'])
def test_doors_say_what_they_take(door, name):
    f = getattr(door, name)
    params,base = inspect.signature(f).parameters,set(inspect.signature(door).parameters)
    assert 'kwargs' not in params and 'bs' in params and 'seed' in params and f.__doc__
    lost = base-set(params)
    assert lost <= {'df','data','text_col','label_col','valid_col'} and (name!='from_df' or not lost)
    assert all(docments(f, full=True)[k]['docment'] for k in ('path','tok','bs') if k in params)
    with pytest.raises(TypeError, match="'batchsize'"): f('nowhere', tiny_tok(), batchsize=3)      # before anything is read
