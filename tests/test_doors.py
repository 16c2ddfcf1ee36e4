"From a frame, a dataset, a csv file or a folder: the same rows give the same data, whichever door they come through"
import inspect
import numpy as np, pandas as pd, pytest, torch
from fastai.data.block import CategoryBlock, DataBlock, MultiCategoryBlock, RegressionBlock
from fastai.data.transforms import ColReader, ColSplitter, RandomSplitter
from fastai.losses import CrossEntropyLossFlat
from fastcore.docments import docments
from sklearn.utils.class_weight import compute_class_weight
from fastformers.data.block import HFTextBlock, classifier_dls, lm_dls, tokenizer_of
from fastformers.data.labels import class_weights, split_rows
from fastformers.text.core import normal
from fastformers.text.readers import read_texts
from fastformers.inference.predictor import from_hf
from fastformers.tasks.core import task_of, tasks
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok

small = dict(bs=8, device='cpu')
doors = pytest.mark.parametrize('door', [classifier_dls,lm_dls], ids=lambda o: o.__name__)

def batches(dls): return [[t.tolist() for t in b] for dl in (dls.train,dls.valid) for b in dl]
def same(a, b): return batches(a)==batches(b)

# ---- files

@doors
@pytest.mark.parametrize('sep,encoding', [(',','utf-8'), (';','cp1252'), ('\t','utf-16')])
def test_csv_is_the_frame_it_was_written_from(door, sep, encoding, tmp_path):
    awkward = ['good, cheap, near', 'he said "never again"', 'first line\nsecond line\n\nfourth', 'null', 'a\tb', 'a; b', 'Schön, café, ñ', '0042']
    df = pd.concat([tiny_df()[:20], pd.DataFrame({'text':awkward, 'label':'neutral', 'is_valid':False})], ignore_index=True)
    df['text'] = df.text.map(lambda o: o.encode('cp1252','ignore').decode('cp1252'))
    df.to_csv(tmp_path/'r.csv', sep=sep, encoding=encoding, index=False)
    assert same(door(read_texts(tmp_path/'r.csv', sep=sep, encoding=encoding), tiny_tok(), **small), door(df, tiny_tok(), **small))

def write(root, df, parts=True):
    "`df` as text files in `root`/part/label"
    for i,r in enumerate(df.itertuples()):
        d = root/('valid' if r.is_valid else 'train')/r.label if parts else root/r.label
        d.mkdir(parents=True, exist_ok=True)
        (d/f'{i:03}.txt').write_text(r.text, encoding='utf-8')
    return root

def test_folders_of_parts_are_the_frame(tmp_path):
    dls = classifier_dls(read_texts(write(tmp_path, tiny_df())), tiny_tok(), **small)
    df = tiny_df().sort_values('label', kind='stable'); df = pd.concat([df[~df.is_valid], df[df.is_valid]])
    assert same(dls, classifier_dls(df, tiny_tok(), **small)) and len(dls.valid_ds)==15
    assert len(lm_dls(read_texts(tmp_path, labels=False), tiny_tok(), **small).valid_ds)==15

def test_folders_of_classes_alone_are_split_by_content(tmp_path):
    dls = classifier_dls(read_texts(write(tmp_path, tiny_df(), parts=False)), tiny_tok(), **small)
    assert list(dls.vocab)==['negative','neutral','positive'] and len(dls.valid_ds)==12

@doors
def test_doors_say_what_they_take(door):
    assert 'kwargs' not in inspect.signature(door).parameters
    assert all(docments(door, full=True)[k]['docment'] for k in ('tok','bs','seed'))

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
    assert same(door(StandIn(numbers, {'label':ClassLabel(), 'text':object()}), tiny_tok(), **small), door(tiny_df(), tiny_tok(), **small))

@doors
def test_a_real_dataset_is_its_frame(door):
    datasets,pa = pytest.importorskip('datasets'),pytest.importorskip('pyarrow')
    kinds = datasets.Features(text=datasets.Value('string'), label=datasets.ClassLabel(names=ClassLabel.names), is_valid=datasets.Value('bool'))
    numbers = tiny_df().assign(label=lambda d: d.label.map(ClassLabel.names.index))
    ds = datasets.Dataset(pa.table(numbers.to_dict('list'), schema=kinds.arrow_schema), info=datasets.DatasetInfo(features=kinds), fingerprint='reviews')
    assert same(door(ds, tiny_tok(), **small), door(tiny_df(), tiny_tok(), **small))

def test_a_language_model_takes_a_list():
    for kind in (list, np.array, pd.Series): assert same(lm_dls(kind(tiny_df().text.tolist()), tiny_tok(), **small), lm_dls(tiny_df()[['text']], tiny_tok(), **small))

# ---- the split

def texts_held(dls):
    tok = tokenizer_of(dls)
    return {tok.decode(x) for x,*_ in dls.valid_ds}

def test_a_fifth_of_each_class_is_held_out_the_same_in_every_call(tmp_path):
    df = tiny_df().drop(columns='is_valid')
    held = texts_held(classifier_dls(df, tiny_tok(), **small))
    assert len(held)==12
    df.to_csv(tmp_path/'r.csv', index=False)
    assert texts_held(classifier_dls(read_texts(tmp_path/'r.csv'), tiny_tok(), seed=7, **small))==held
    more = pd.concat([pd.DataFrame({'text':[f'Another text, number {i}.' for i in range(40)]}), df[['text']].sample(frac=1, random_state=1)])
    assert texts_held(lm_dls(df, tiny_tok(), **small)) < texts_held(lm_dls(more, tiny_tok(), **small))  # of texts without labels by their hash

def test_a_copy_goes_where_its_original_went():
    df = tiny_df().drop(columns='is_valid')
    both = pd.concat([df, df.assign(text=df.text.str.upper()), df.assign(text='  '+df.text.str.replace(' ','  ',n=1)+'\n')], ignore_index=True)
    train,valid = split_rows(both)
    assert not {*map(normal, both.text[train])} & {*map(normal, both.text[valid])} and len(valid)==3*len(split_rows(df)[1])

# ---- blocks

def block(y, get_y, x='text', splitter=None): return DataBlock((HFTextBlock(tiny_tok()), y), get_x=ColReader(x), get_y=get_y, splitter=splitter or ColSplitter())

def test_a_block_by_hand_is_the_factory():
    assert same(block(CategoryBlock, ColReader('label')).dataloaders(tiny_df(), **small), classifier_dls(tiny_df(), tiny_tok(), **small))
    assert len(block(CategoryBlock, ColReader('label'), splitter=RandomSplitter(.25, seed=1)).dataloaders(tiny_df(), **small).valid_ds)==15
    df = tiny_df().assign(label=lambda d: d.text.str.len()/10)
    assert same(block(RegressionBlock, ColReader('label')).dataloaders(df, **small), classifier_dls(df, tiny_tok(), **small))

def test_pairs_come_from_two_columns():
    by_hand = block(CategoryBlock, ColReader('label'), ['text_a','text_b']).dataloaders(tiny_pairs(), **small)
    dls = classifier_dls(tiny_pairs(), tiny_tok(), text_col=['text_a','text_b'], **small)
    assert same(by_hand, dls) and dls.one_batch()[0].segment_ids.max()==1
    new = dls.test_dl([('a man plays','somebody plays')]).one_batch()[0]
    assert (new==by_hand.test_dl(pd.DataFrame({'text_a':['a man plays'], 'text_b':['somebody plays']})).one_batch()[0]).all()

def test_several_labels_come_from_one_column_or_many():
    df = tiny_df().assign(long=lambda d: (d.text.str.len()>60).astype(int), loud=lambda d: d.text.str.contains('!').astype(int))
    joined = df.assign(label=[';'.join(k for k in ('long','loud') if r[k]) for r in df.to_dict('records')])
    a,b = classifier_dls(joined, tiny_tok(), **small),classifier_dls(df, tiny_tok(), label_col=['long','loud'], **small)
    c = block(MultiCategoryBlock, ColReader('label', label_delim=';')).dataloaders(joined, **small)
    lists = classifier_dls(joined.assign(label=joined.label.map(lambda o: o.split(';') if o else [])), tiny_tok(), **small)
    assert list(a.vocab)==list(b.vocab)==list(c.vocab)==['long','loud']
    first = batches(a) # a second pass has another order
    assert batches(b)==first==batches(c)==batches(lists)

@pytest.mark.exact
def test_flag_columns_are_the_vocab_in_their_order(tmp_path):
    df = tiny_df().assign(z=lambda d: (d.label=='positive').astype(int), never=0, b=lambda d: (d.label=='negative').astype(int))
    dls = classifier_dls(df, tiny_tok(), label_col=['z','never','b'], **small)
    assert list(dls.vocab)==['z','never','b'] and dls.c==3
    assert torch.stack([y for _,y in dls.train_ds]).tolist()==df.loc[~df.is_valid, ['z','never','b']].astype(float).to_numpy().tolist()
    learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1))
    with learn.no_bar(): preds = learn.get_preds()[0]
    scores = from_hf(learn.to_hf(tmp_path/'out'), device='cpu')(df.text[df.is_valid].tolist(), top_k=None)
    for row,o in zip(preds, scores):
        by_name = {d['label']:d['score'] for d in o}
        assert [by_name[c] for c in ('z','never','b')]==pytest.approx(row.tolist(), abs=1e-5)

def test_several_numbers_come_from_several_columns():
    df = tiny_df().assign(c=np.arange(60)/7, a=np.arange(60)[::-1]*100.)
    dls = classifier_dls(df, tiny_tok(), label_col=['c','a'], **small)
    assert task_of(dls).name=='regression' and dls.one_batch()[1].shape==(8,2)
    assert torch.stack([y for _,y in dls.valid_ds]).numpy()==pytest.approx(df.loc[df.is_valid, ['c','a']].to_numpy(), rel=1e-5)

def test_a_new_regression_answers_about_the_mean_in_the_numbers_of_the_table():
    df = tiny_df()
    df['label'] = 5000.+df.text.str.len()
    learn = classifier_learner(classifier_dls(df, tiny_tok(), **small), tiny_arch('bert', num_hidden_layers=1))
    ys = df.label[~df.is_valid]
    assert abs(learn.get_preds()[0].numpy()-ys.mean()).max()<5*ys.std()

def test_a_task_may_name_the_labels_in_their_order():
    dls = classifier_dls(tiny_df(), tiny_tok(), task=tasks['single'](['positive','never','neutral','negative']), **small)
    assert list(dls.vocab)==['positive','never','neutral','negative'] and task_of(dls).labels==list(dls.vocab)

# ---- weights

def test_class_weights_are_those_of_scikit_learn():
    df = tiny_df()[lambda d: (d.label!='neutral') | (d.index<20)]
    for dls in (classifier_dls(df, tiny_tok(), **small), block(CategoryBlock, ColReader('label')).dataloaders(df, **small)):
        train = df[~df.is_valid].label.to_numpy()
        assert class_weights(dls).tolist()==pytest.approx(compute_class_weight('balanced', classes=np.array(dls.vocab), y=train))
    learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), loss_func=CrossEntropyLossFlat(weight=class_weights(dls)))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert np.isfinite(learn.recorder.losses).all()

def test_class_weights_need_classes():
    df = tiny_df().assign(label=lambda d: d.text.str.len()/10)
    with pytest.raises(ValueError, match='one class or several labels'): class_weights(classifier_dls(df, tiny_tok(), **small))
