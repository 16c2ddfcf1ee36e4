"What users really pass: each odd thing trains, or is refused at once in a sentence that names the row or the column and what to do"
import copy, logging, os, subprocess, sys, time
import numpy as np, pandas as pd, pytest, torch
from fastai.data.block import CategoryBlock, DataBlock, MultiCategoryBlock, RegressionBlock
from fastai.data.transforms import ColReader, ColSplitter
from fastformers.data import labels as rows
from fastformers.data.block import HFTextBlock, classifier_dls, label_kind, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.ulmfit.recipe import read_recipe
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok

def tok(style='bert'): return tiny_tok(style)
doors = pytest.mark.parametrize('door', [classifier_dls,lm_dls], ids=lambda o: o.__name__)

def replaced(col, i, v):
    "The tiny reviews, `v` in row `i` of `col`"
    df = tiny_df().astype({col:object}); df.at[i,col] = v
    return df

def build(door, df, t=None, **kwargs): return door(df, tok() if t is None else t, bs=8, device='cpu', **kwargs)
def refused(door, df, kind, match, t=None, **kwargs):
    with pytest.raises(kind, match=match) as e: build(door, df, t, **kwargs)
    assert 'Traceback' not in str(e.value) and len(str(e.value))<500

@pytest.fixture
def log(caplog):
    "What the log says from here on; sentences that are said once may be said again"
    rows._once.cache_clear(); caplog.set_level(logging.INFO, 'fastformers')
    return caplog

def trains(dls):
    "One epoch of a tiny network"
    f = lm_learner if dls.train.after_batch.fs and hasattr(dls.train.after_batch.fs[0],'loss_func') else classifier_learner
    learn = f(dls, tiny_arch('bert', num_hidden_layers=1))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert np.isfinite(learn.validate()).all()
    return learn

# ---- texts

@doors
@pytest.mark.parametrize('text', ['', '   ', '\t\n'], ids=repr)
def test_empty_texts_stay_and_are_counted(door, text, log):
    df = replaced('text', 0, text); df.at[7,'text'] = text
    dls = build(door, df)
    assert "2 of 60 texts in column 'text' are empty, the first in row 0" in log.text
    if door is classifier_dls: assert len(dls.train_ds)+len(dls.valid_ds)==60
    for x,*_ in dls.train: assert x.attention_mask.any(1).all()

@doors
@pytest.mark.parametrize('text', [None, float('nan'), pd.NA, pd.NaT], ids=repr)
def test_a_missing_text_is_refused(door, text): refused(door, replaced('text', 5, text), TypeError, r"'text' holds .* in row 5; fill missing texts.*dropna\(subset=\['text'\]\)")

@doors
@pytest.mark.parametrize('text', [7, 1.5, True, np.int64(3)], ids=repr)
def test_a_number_as_text_is_refused(door, text): refused(door, replaced('text', 5, text), TypeError, r"'text' holds .* in row 5; turn numbers into text.*astype\(\{'text': str\}\)")

@doors
def test_a_column_of_lists_as_text_is_refused(door):
    df = tiny_df(); df['text'] = df.text.str.split()
    refused(door, df, TypeError, r"'text' holds \['Awful\.'\] in row 0, and 59 more like it; join its parts first, as in df\['text'\]\.str\.join")

@doors
def test_bytes_as_text_are_refused(door): refused(door, replaced('text', 5, b'fine'), TypeError, r"holds b'fine' in row 5; decode it first")

@doors
@pytest.mark.parametrize('text', ['a fine film ' * 8_500, 'w'*100_000], ids=['words','one word'])
def test_a_very_long_text_is_cut_and_said(door, text, log):
    dls = build(door, replaced('text', 0, text), **({'max_len':64} if door is classifier_dls else {'seq_len':64}))
    assert max(x.shape[1] for x,*_ in dls.train)<=64
    if door is classifier_dls and ' ' in text: assert '1 of 60 texts fill `max_len` 64' in log.text

@doors
@pytest.mark.parametrize('style', ['bert','gpt2','llama','xlnet'])
def test_emoji_nul_and_lone_surrogates_are_texts(door, style):
    df = tiny_df().astype(object)
    for i,o in enumerate(['👩‍👩‍👧 ❤️', 'a\0b', 'x \ud83d y \udc00', '\ufdd0\uffff']): df.at[i,'text'] = o
    for dl in build(door, df, tok(style)).loaders:
        for x,*_ in dl: assert x.attention_mask.any(1).all()

@doors
def test_special_tokens_in_a_text_are_ordinary(door):
    t = tok(); df = tiny_df().assign(text='[SEP] [MASK] [PAD] [CLS]')
    kwargs = {'objective':None} if door is lm_dls else {}
    ids = build(door, df, t, **kwargs).train_ds[0][0].ids
    assert sum(torch.isin(ids, torch.tensor(t.all_special_ids)).tolist())<=2+sum(ids==t.unk_token_id)
    assert not (ids[1:-1]==t.mask_token_id).any() and not (ids[1:-1]==t.sep_token_id).any()

@doors
def test_texts_in_training_and_validation_are_said_once(door, log):
    df = pd.concat([tiny_df(), tiny_df()[:2].assign(is_valid=True)])
    for _ in range(2): build(door, df)
    assert log.text.count('2 of 17 validation texts are also in training')==1
    build(door, df.assign(text='I say: '+df.text)) # other data, with as many
    assert log.text.count('2 of 17 validation texts are also in training')==2

def test_labels_are_spoken_of_for_each_table(log):
    for x in 'ab': build(classifier_dls, tiny_df().assign(text=lambda d: x+d.text, label=[0.,1.]*30 if x=='a' else [1.,0.]*30))
    assert log.text.count('is read as regression')==2

@pytest.mark.parametrize('item', [None, 7, float('nan')], ids=repr)
def test_new_texts_that_are_none_are_refused(item):
    dls = build(classifier_dls, tiny_df())
    with pytest.raises(TypeError, match='expected a text, a pair of texts or a row'): dls.test_dl([item]).one_batch()
    with pytest.raises(TypeError, match="`text_col` 'text' holds"): dls.test_dl(pd.DataFrame({'text':[item]}, dtype=object)).one_batch()
    with pytest.raises(ValueError, match="`text_col` 'text' is not in this row; it has review"): dls.test_dl(pd.DataFrame({'review':['fine']})).one_batch()

def test_a_data_block_refuses_what_is_no_text():
    block = DataBlock((HFTextBlock(tok()), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
    with pytest.raises(TypeError, match='`get_x` gives nan for item .; fill missing texts'): block.dataloaders(replaced('text', 2, float('nan')))

# ---- columns

@doors
@pytest.mark.parametrize('col,near', [('txt','text'), ('Text','text'), ('txet','text'), ('zzz',None)])
def test_a_missing_column_names_the_nearest(door, col, near):
    refused(door, tiny_df(), ValueError, rf"`text_col` '{col}' is not a column; columns are text, label, is_valid" + (f"; did you mean '{near}'" if near else '$'), text_col=col)

def test_a_missing_label_column_names_the_nearest(): refused(classifier_dls, tiny_df(), ValueError, "`label_col` 'labels' is not .*did you mean 'label'", label_col='labels')
@doors
def test_a_missing_valid_column_names_the_nearest(door): refused(door, tiny_df(), ValueError, "`valid_col` 'valid' is not a column.*did you mean 'is_valid'", valid_col='valid')

@doors
def test_two_columns_of_one_name_are_refused(door):
    df = pd.concat([tiny_df(), tiny_df().text], axis=1)
    refused(door, df, ValueError, r"the column 'text' is there 2 times; rename one, or keep the first")

@doors
@pytest.mark.parametrize('df', [tiny_df()[:0], pd.DataFrame()], ids=['no rows','nothing'])
def test_an_empty_frame_is_refused(door, df): refused(door, df, ValueError, 'the data have no rows; columns are')

def test_three_text_columns_are_refused():
    for door in (classifier_dls,lm_dls): refused(door, tiny_pairs(), ValueError, 'one column or a pair of them, got 3: text_a, text_b, label', text_col=['text_a','text_b','label'])

@doors
def test_one_column_in_a_list_is_that_column(door):
    a,b = (build(door, tiny_df(), text_col=o).valid.one_batch()[0] for o in ('text',['text']))
    assert (a==b).all()

@doors
def test_a_repeated_index_changes_nothing(door):
    df = tiny_df()
    a,b = (build(door, o).valid.one_batch()[0] for o in (df, df.set_index(np.zeros(len(df), int))))
    assert (a==b).all()
    refused(door, replaced('text', 5, None).set_index(np.zeros(60, int)), TypeError, r"in row 0 \(number 5\)")

@doors
def test_columns_may_be_numbers_and_categories(door):
    df = tiny_df().astype({'text':'category', 'label':'category', 'is_valid':'category'})
    names = dict(text_col=0, valid_col=2) | ({'label_col':1} if door is classifier_dls else {})
    a,b = build(door, tiny_df()).valid.one_batch()[0], build(door, df.set_axis(range(3), axis=1), **names).valid.one_batch()[0]
    assert (a==b).all()

@doors
def test_arrow_columns_are_as_good_as_any(door):
    pa = pytest.importorskip('pyarrow')
    df = tiny_df()
    kinds = [dict(text=pd.ArrowDtype(pa.string()), label=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())), is_valid=pd.ArrowDtype(pa.bool_())), {'text':'string[pyarrow]', 'label':'string[pyarrow]'}]
    for k in kinds: assert (build(door, df).valid.one_batch()[0]==build(door, df.astype(k)).valid.one_batch()[0]).all()
    if door is classifier_dls:
        score = df.assign(label=pd.array(range(60), dtype=pd.ArrowDtype(pa.float32())))
        assert label_kind(score, 'label')=='regression' and build(door, score).one_batch()[1].dtype==torch.float32
        assert build(door, df.assign(label=pd.array([i%3 for i in range(60)], dtype=pd.ArrowDtype(pa.int8())))).vocab==[0,1,2]
    refused(door, df.astype({'text':'string[pyarrow]'}).assign(text=lambda d: d.text.where(d.index!=5)), TypeError, 'in row 5; fill missing texts')

@doors
@pytest.mark.parametrize('data,match', [('reviews.csv','got str; for a file there is `.from_csv`'), ({'train':tiny_df()},"got dict; pass one of its parts: 'train'"), (None,'got NoneType'), ((o for o in 'ab'),'make it a list first')], ids=['path','parts','None','generator'])
def test_what_is_no_table_is_refused(door, data, match): refused(door, data, TypeError, match)

# ---- a block for the labels, which says what they are

def test_a_block_is_checked_as_its_kind_of_label():
    df = tiny_df(); at = int(df.is_valid.argmax())
    refused(classifier_dls, replaced('label', at, 'odd'), ValueError, 'validation has labels that training has not: odd', y_block=CategoryBlock)
    refused(classifier_dls, df.assign(label='x'), ValueError, 'a classifier needs two or more', y_block=CategoryBlock())
    refused(classifier_dls, replaced('label', at, 'odd'), ValueError, 'labels that are not in the vocab: odd; it has negative, neutral, positive', y_block=CategoryBlock(vocab=sorted(df.label.unique())))
    refused(classifier_dls, replaced('label', at, 'a;odd'), ValueError, 'validation has labels that training has not: a, odd', y_block=MultiCategoryBlock)
    refused(classifier_dls, df.assign(label=range(60)), TypeError, 'holds 0 in row 0, where a row has several labels; give each a list of names', y_block=MultiCategoryBlock)
    refused(classifier_dls, df, ValueError, 'one class a row is read from one column', y_block=CategoryBlock, label_col=['label','text'])
    for v in (float('inf'), -float('inf')): refused(classifier_dls, df.assign(label=[v]+[1.]*59), ValueError, "'label' holds -?inf in row 0; a number to predict must be finite", y_block=RegressionBlock)
    refused(classifier_dls, df.assign(a=1., b=[1.]*59+[float('inf')]), ValueError, r"holds \[1.0, inf\] in row 59; a number", y_block=RegressionBlock(n_out=2), label_col=['a','b'])
    refused(classifier_dls, df, TypeError, "'label' holds 'negative' in row 0, which is no number to predict", y_block=RegressionBlock)
    refused(classifier_dls, replaced('label', 4, ' '), ValueError, 'row 4 has no label', y_block=RegressionBlock)

def test_a_block_that_takes_unknown_labels_may_have_them():
    dls = build(classifier_dls, replaced('label', int(tiny_df().is_valid.argmax()), 'odd'), y_block=CategoryBlock(add_na=True))
    assert list(dls.vocab)==['#na#','negative','neutral','positive'] and sum(int(y)==0 for _,y in dls.valid_ds)==1

def test_a_vocab_may_have_labels_without_a_row(log):
    dls = build(classifier_dls, tiny_df(), y_block=CategoryBlock(vocab=['positive','odd','neutral','negative'], sort=False))
    assert list(dls.vocab)==['positive','odd','neutral','negative'] and 'no row in training has the label odd: it cannot be learnt' in log.text

def test_whole_floats_that_a_block_asks_for_are_not_spoken_of(log):
    df = tiny_df().assign(label=[0.,1.]*30)
    assert build(classifier_dls, df, y_block=CategoryBlock).c==2 and build(classifier_dls, df, y_block=RegressionBlock).c==1
    assert 'regression' not in log.text

# ---- the split

@doors
@pytest.mark.parametrize('kind', [bool,str,int,float,object,'category'], ids=str)
def test_flags_of_any_type_mean_the_same(door, kind):
    a,b = (build(door, o).valid.one_batch()[0] for o in (tiny_df(), tiny_df().astype({'is_valid':kind})))
    assert (a==b).all()

@doors
@pytest.mark.parametrize('flag', ['valid','none',2,0.5,'nan'])
def test_a_flag_that_is_none_is_refused(door, flag): refused(door, replaced('is_valid', 3, flag), ValueError, f"column 'is_valid' holds {flag!r} in row 3; it must be True, yes or 1 for validation")

def test_a_label_only_in_validation_is_refused():
    refused(classifier_dls, replaced('label', int(tiny_df().is_valid.argmax()), 'odd'), ValueError, 'validation has labels that training has not: odd; move some of their rows')

def test_a_class_with_a_single_row_stays_in_training(log):
    df = replaced('label', 5, 'odd').drop(columns='is_valid')
    for seed in range(12):
        dls = build(classifier_dls, df, valid_pct=.5, seed=seed)
        assert 'odd' in dls.vocab and 'odd' not in {dls.vocab[int(y)] for _,y in dls.valid_ds}
    assert '1 of 30 rows that were drawn for validation stay in training, which has no other of their label: odd; 29 are held out' in log.text

def test_labels_that_are_all_different_are_refused():
    refused(classifier_dls, tiny_df().drop(columns='is_valid'), ValueError, 'only one of its class; is `label_col` right', label_col='text')

@doors
def test_a_single_row_cannot_be_split(door): refused(door, tiny_df()[['text','label']][:1], ValueError, 'of 1 rows out for validation; give at least 2 rows')

# ---- labels

@pytest.mark.parametrize('label,match', [(None,r"row 4 has no label in column 'label'; drop such rows first.*dropna"), (float('nan'),'row 4 has no label'), ('',r"row 4 has no label.*str\.strip\(\)!=''"), ('  ','row 4 has no label')], ids=repr)
def test_a_missing_label_is_refused(label, match): refused(classifier_dls, replaced('label', 4, label), ValueError, match)

def test_one_class_is_refused(): refused(classifier_dls, tiny_df().assign(label='x'), ValueError, "'label' has only the class 'x' in training; a classifier needs two or more")

def test_bytes_as_labels_are_refused():
    refused(classifier_dls, tiny_df().assign(label=lambda d: d.label.str.encode('utf-8')), TypeError, r"'label' holds b'negative' in row 0, bytes; decode them first.*str\.decode")

def test_names_and_numbers_are_not_mixed(): refused(classifier_dls, replaced('label', 4, 1), TypeError, r"'label' mixes str \(row 0\) and int \(row 4\); make them one, e\.g\. df\.astype\(\{'label': str\}\)")

@pytest.mark.parametrize('kind', [bool,object,'boolean'], ids=str)
def test_booleans_are_two_classes(kind):
    dls = build(classifier_dls, tiny_df().assign(label=lambda d: d.label.eq('positive').astype(kind)))
    assert [bool(o) for o in dls.vocab]==[False,True] and label_kind(tiny_df().assign(label=True), 'label')=='single'
    learn = trains(dls)
    assert str(learn.predict('a fine film')[0]) in ('True','False')
    learn.show_results(max_n=2)

@pytest.mark.parametrize('label,match', [(1,'holds 1 in row 4, where a row has several labels; give each a list'), ([1],r"mixes str \(row 0\) and int \(row 4\)"), ([{}],'a label is a name, a number, or a list')], ids=repr)
def test_several_labels_are_lists_of_names(label, match):
    df = tiny_df().assign(label=lambda d: d.label.map(lambda o: [o])); df.at[4,'label'] = label
    refused(classifier_dls, df, TypeError, match)

def test_a_dict_is_no_label(): refused(classifier_dls, tiny_df().assign(label=[{'k':i%2} for i in range(60)]), TypeError, "a label is a name, a number, or a list of names")

@doors
def test_a_date_as_text_is_refused(door): refused(door, replaced('text', 5, pd.Timestamp('2020')), TypeError, r"in row 5; turn it into text with str")

def test_labels_in_lists_are_several_labels():
    df = tiny_df().assign(label=lambda d: [[l,'long'] if len(t)>60 else [l] for t,l in zip(d.text,d.label)])
    joined = tiny_df().assign(label=df.label.str.join(';'))
    a,b = build(classifier_dls, df),build(classifier_dls, joined)
    assert list(a.vocab)==list(b.vocab)==['long','negative','neutral','positive'] and (a.valid.one_batch()[1]==b.valid.one_batch()[1]).all()

@pytest.mark.parametrize('v', [float('inf'), -float('inf')])
def test_an_infinite_target_is_refused(v): refused(classifier_dls, tiny_df().assign(label=[1.5,v]+[2.25]*58), ValueError, r"'label' holds -?inf in row 1; a number to predict must be finite")

def test_labels_that_differ_by_a_space_are_said(log):
    df = tiny_df(); df.loc[:2,'label'] += ' '
    assert build(classifier_dls, df).c==6
    assert "labels that differ only by spaces or capitals: 'negative', 'negative '" in log.text

def test_whole_floats_are_said_to_be_regression(log):
    build(classifier_dls, tiny_df().assign(label=[0.,1.]*30)); assert 'is read as regression; for classes use df.astype' in log.text

def test_flags_of_several_columns_are_0_or_1():
    df = tiny_df().assign(a=1, b=2)
    refused(classifier_dls, df, ValueError, "'b' of `label_col` holds 2; several columns are flags, 0 or 1", label_col=['a','b'])
    dls = build(classifier_dls, df.assign(a=df.index/7, b=df.index/9), label_col=['a','b'], y_block=RegressionBlock(n_out=2))
    assert dls.one_batch()[1].shape==(8,2)

# ---- any table at all

odd = ['', ' ', 'a', 'a;b', 'good film', None, float('nan'), pd.NA, 1, 0, True, 2.5, float('inf'), b'x', ['a'], ['a','b'], [], ('a',), {'a'}, {'k':1}, np.array(['a']), np.array([1,2]),
       np.int64(3), np.float32(1.5), pd.Timestamp('2020'), 'x \ud83d', '\0', object, 1+2j, np.str_('q'), pd.NaT]

@pytest.mark.parametrize('seed', range(4))
def test_any_table_is_read_or_refused_in_our_words(seed):
    rng,n = np.random.default_rng(seed),9
    def column(pool):
        o = np.empty(n, object)
        for i in range(n): o[i] = pool[rng.integers(len(pool))]
        return pd.Series(o).infer_objects() if rng.random()<.3 else pd.Series(o)
    def pool(k): return [odd[i] for i in rng.choice(len(odd), k)]
    read = 0
    for _ in range(60):
        df = pd.DataFrame({'text':column(pool(2) if rng.random()<.2 else ['fine','so so','bad']), 'label':column(pool(rng.integers(1,4)) if rng.random()<.7 else ['a','b'])})
        if rng.random()<.4: df['is_valid'] = column(pool(2)) if rng.random()<.4 else np.arange(n)%2
        for door in (classifier_dls,lm_dls):
            try: dls = build(door, df); read += len([b for dl in dls.loaders for b in dl])>0
            except (TypeError,ValueError) as e: assert any(o in str(e) for o in ('column','`text_col`','documents','no row','validation has labels')), (repr(e), df)
    assert read>10

# ---- tokenizers, models, files

@doors
def test_a_tokenizer_without_pad_token_pads(door):
    t = copy.deepcopy(tok('gpt2')); t.pad_token = None; assert t.pad_token_id is None
    x = build(door, tiny_df(), t).train.one_batch()[0]
    assert not x.attention_mask.all() and x.attention_mask.any(1).all()

def test_a_tokenizer_that_does_not_fit_the_model_is_refused():
    for door,learner in ((classifier_dls,classifier_learner), (lm_dls,lm_learner)):
        with pytest.raises(ValueError, match=r'tokenizer has \d+ tokens, the model 50'): learner(build(door, tiny_df()), tiny_arch('bert', vocab_size=50))

@doors
def test_an_unknown_arch_without_network_is_an_error_at_once(door):
    start = time.time()
    with pytest.raises(OSError, match="No tokenizer for 'nobody/no-such-model'.*not in the local cache"): build(door, tiny_df(), 'nobody/no-such-model')
    assert time.time()-start<10

def test_an_unreachable_hub_is_given_up_in_seconds():
    code = "from fastformers.text.tokenizer import load_tokenizer\ntry: load_tokenizer('nobody/no-such-model')\nexcept OSError as e: print(e)"
    env = {k:v for k,v in os.environ.items() if k not in ('HF_HUB_OFFLINE','TRANSFORMERS_OFFLINE')} | {'HF_ENDPOINT':'http://127.0.0.1:9'} # nobody listens there
    start = time.time()
    r = subprocess.run([sys.executable,'-c',code], env=env, capture_output=True, text=True, timeout=120)
    assert "No tokenizer for 'nobody/no-such-model'" in r.stdout, r.stderr[-500:]
    assert time.time()-start<40 # most of it is the import

def _written(d):
    "A small checkpoint of a classifier in `d`"
    classifier_learner(build(classifier_dls, tiny_df()), tiny_arch('bert', num_hidden_layers=1)).save_encoder(d)
    return d

def test_a_folder_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path/'file').write_text('not a folder')
    learn = classifier_learner(build(classifier_dls, tiny_df()), tiny_arch('bert', num_hidden_layers=1))
    with pytest.raises(OSError, match='file'): learn.save_encoder(tmp_path/'file'/'out')
    assert [o.name for o in tmp_path.iterdir()]==['file'] and (tmp_path/'file').read_text()=='not a folder'

def test_a_checkpoint_cut_short_is_named(tmp_path):
    d = _written(tmp_path/'stage'); f = d/'model.safetensors'
    f.write_bytes(f.read_bytes()[:f.stat().st_size//2])
    with pytest.raises((OSError,ValueError), match=r'model\.safetensors') as e: classifier_learner(build(classifier_dls, tiny_df()), d)
    assert str(d) in str(e.value)

def test_a_misspelt_key_of_a_recipe_is_named(tmp_path):
    (tmp_path/'my.ini').write_text('[lm]\nepoch = 1\n')
    with pytest.raises(ValueError, match=r"(?s)my\.ini.*epoch.*epochs"): read_recipe(tmp_path/'my.ini')
