"Whatever text comes, training goes on; what is no text or no label is refused in words that say what to do"
import numpy as np, pandas as pd, pytest, torch
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.text.encode import HFTokenizer
from test_contracts_common import *

pytestmark = pytest.mark.exact

odd = {'empty':'', 'spaces':' \t\n  ', 'long':'a long story ' * 1_000, 'one long word':'w'*5_000, 'emoji':'👩‍👩‍👧 ❤️ 🇫🇷', 'NUL':'a\0b\0', 'lone surrogate':'x \ud83d y \udc00',
       'surrogate pair':'\ud83d\ude00', 'right to left':'\u202eשלום\u202c', 'control':'\x07\x1b[31m\r', 'not a character':'\ufdd0\uffff', 'private':'\ue000', 'accents':'e'+'\u0301'*500}

def frame(n=16): return pd.DataFrame({'text':texts[:n], 'label':['a','b']*(n//2), 'is_valid':([False,False,True,True]*n)[:n]})

def one_epoch(df, style='bert', **kwargs):
    "One epoch, and a prediction for each row of `df`"
    dls = classifier_dls(df, tiny_tok(style), bs=8, **{'max_len':64, **kwargs})
    learn = quiet(classifier_learner(dls, tiny_arch(style.replace('_','-'), num_hidden_layers=1)))
    learn.fit(1, lr=1e-3)
    assert len(learn.recorder.losses) and all(np.isfinite(o) for o in learn.recorder.losses) and all(np.isfinite(learn.validate()))
    assert all(p.isfinite().all() for p in learn.model.parameters())
    return learn

@pytest.mark.parametrize('style', styles)
@pytest.mark.parametrize('where', ['training','validation'])
def test_odd_texts_train(style, where):
    df = pd.DataFrame({'text':pd.Series([*odd.values()]*2, dtype=object), 'label':['a','b']*len(odd)})
    df = pd.concat([df.assign(is_valid=where=='validation'), frame().assign(is_valid=where=='training')], ignore_index=True)
    learn = one_epoch(df, style)
    pred,_ = learn.get_preds(ds_idx=int(where=='validation'))
    assert len(pred)==2*len(odd) and pred.isfinite().all() and max(len(o['ids']) for o in learn.dls.train_ds.items)<=64
    for name in ('empty','spaces','long','lone surrogate'): assert learn.predict(odd[name])[2].isfinite().all(), name

@pytest.mark.parametrize('style', styles)
def test_odd_pairs_train(style):
    sides = ['', ' ', odd['long'], odd['lone surrogate'], 'a', odd['NUL']]
    items = [(a,b) for a in sides for b in sides]
    df = pd.DataFrame(items, columns=['a','b'], dtype=object).assign(label=['x','y']*18, is_valid=[False,True,True,False]*9)
    learn = one_epoch(df, style, text_col=['a','b'])
    for o in (('',''), ('a',''), ('',odd['long'])): assert learn.predict(o)[2].isfinite().all()

@pytest.mark.parametrize('style', ['bert','gpt2','xlnet'])
def test_a_batch_of_empty_texts_trains(style):
    one_epoch(frame().assign(text=['a word']+['']*15), style)

@pytest.mark.parametrize('style', ['bert','roberta','gpt2','llama'])
def test_odd_texts_train_a_language_model(style):
    obj,many = objective(style),[o[:1000] for o in odd.values()]*2
    learn = quiet(lm_learner(lm_dls(many, obj.tfm, obj, valid_pct=.5, bs=8, seq_len=32), tiny_arch(style, num_hidden_layers=1)))
    learn.fit(1, lr=1e-3)
    assert all(np.isfinite(o) for o in learn.recorder.losses) and all(np.isfinite(learn.validate()))

def test_a_long_text_is_cut_where_truncation_says():
    words = [f'{w}' for w in ('good bad red blue slow fast '*3000).split()]
    tok = tiny_tok('bert')
    full = HFTokenizer(tok)(' '.join(words)).ids.tolist()
    for how,expected in dict(head=full[:63]+full[-1:], tail=full[:1]+full[-63:], head_tail=full[:1]+full[1:1+62//4]+full[-1-(62-62//4):]).items():
        df = frame().assign(text=' '.join(words))
        dls = classifier_dls(df, tok, max_len=64, truncation=how)
        assert dls.train_ds[0][0].ids.tolist()==expected and len(expected)==64

# ---- errors, in words

def replaced(col, i, v):
    df = frame().astype({col:object}); df.loc[i, col] = v
    return df

refused = {
    'missing text':(lambda: classifier_dls(replaced('text', 3, None), tiny_tok()), TypeError, r"`text_col` 'text' holds (None|nan) in row 3.*fill missing texts"),
    'NaN text':(lambda: classifier_dls(replaced('text', 5, float('nan')), tiny_tok()), TypeError, r"'text' holds nan in row 5.*or drop them"),
    'pd.NA text':(lambda: classifier_dls(replaced('text', 5, pd.NA), tiny_tok()), TypeError, r"'text' holds (<NA>|nan|None) in row 5.*fill missing texts"),
    'number as text':(lambda: classifier_dls(replaced('text', 2, 7), tiny_tok()), TypeError, r"'text' holds 7 in row 2.*turn other values into strings"),
    'no text column':(lambda: classifier_dls(frame(), tiny_tok(), text_col='review'), ValueError, r"`text_col` 'review' is not a column; columns are text, label, is_valid"),
    'no text column in pair':(lambda: classifier_dls(frame(), tiny_tok(), text_col=['text','b']), ValueError, r"`text_col` 'b' is not a column; columns are text"),
    'no label column':(lambda: classifier_dls(frame(), tiny_tok(), label_col='sentiment'), ValueError, r"`label_col` 'sentiment' is not a column; columns are text, label"),
    'no valid column':(lambda: classifier_dls(frame(), tiny_tok(), valid_col='test'), ValueError, r"`valid_col` 'test' is not a column; columns are text"),
    'one class':(lambda: classifier_dls(frame().assign(label='a'), tiny_tok()), ValueError, r"'label' has only the class \['a'\] in training, expected two or more"),
    'one class in training':(lambda: classifier_dls(frame().assign(label=['a','a','b','b']*4), tiny_tok()), ValueError, r"only the class \['a'\] in training"),
    'one number':(lambda: classifier_dls(frame().assign(label=3.5), tiny_tok()), ValueError, r"'label' has a standard deviation of 0 in training"),
    'missing label':(lambda: classifier_dls(replaced('label', 4, None), tiny_tok()), ValueError, r"1 of 16 rows have no label in column 'label', first row 4; .*dropna"),
    'empty frame':(lambda: classifier_dls(frame().iloc[:0], tiny_tok()), ValueError, r"the data have no rows"),
    'missing is_valid':(lambda: classifier_dls(replaced('is_valid', 0, None), tiny_tok()), ValueError, r"column 'is_valid' must be True .* got None"),
    'nothing to validate':(lambda: classifier_dls(frame().assign(is_valid=False), tiny_tok()), ValueError, r"0 of 16 rows are for validation, and both parts need rows"),
    'too short max_len':(lambda: classifier_dls(frame(), tiny_tok(), max_len=2), ValueError, r"`max_len` 2 leaves no room"),
    'no dataframe':(lambda: lm_dls(7, tiny_tok()), TypeError, r"`data` is a DataFrame, a list of texts or a datasets.Dataset .one part., got int"),
    'empty list':(lambda: lm_dls([], tiny_tok()), ValueError, r"the data have no rows"),
    'empty LM frame':(lambda: lm_dls(frame().iloc[:0], tiny_tok()), ValueError, r"the data have no rows"),
    'LM texts missing':(lambda: lm_dls(replaced('text', 3, None), tiny_tok()), TypeError, r"holds (None|nan) in row 3"),
    'blank LM texts':(lambda: lm_dls(frame().assign(text=' '), tiny_tok()), ValueError, "all 16 texts are blank"),
    'no objective':(lambda: lm_dls(frame(), tiny_tok(), objective='mlm'), TypeError, r"`objective` is an `Objective` such as `MLM\(tok\)`, got 'mlm'"),
    'foreign tokenizer':(lambda: classifier_learner(classifier_dls(frame(), tiny_tok('bert')), tiny_arch('bert', vocab_size=50)), ValueError, r"tokenizer has \d+ tokens, the model 50: they do not belong"),
    'text longer than the model':(lambda: classifier_learner(classifier_dls(frame(), tiny_tok()), tiny_arch('bert', max_position_embeddings=8)), ValueError, r"longest text has \d+ tokens, the model takes 8.*max_len=8"),
}

def test_a_label_of_several_that_is_only_in_validation_is_named(caplog):
    df = frame().assign(label=['a;b','a','c','b']*4)
    assert list(classifier_dls(df, tiny_tok()).vocab)==['a','b','c']
    assert 'training has no row of c: 4 of 8 validation rows have it, and it is never answered' in caplog.text

def test_a_space_after_a_semicolon_makes_no_new_label():
    assert list(classifier_dls(frame().assign(label=['a; b','b','a; b','a']*4), tiny_tok()).vocab)==['a','b']

@pytest.mark.parametrize('name', refused)
def test_refused_in_words_that_help(name):
    f,err,words = refused[name]
    with pytest.raises(err, match=words): f()

# ---- frames as pandas makes them

def test_a_repeated_index_is_no_matter():
    df = frame()
    a,b = (classifier_dls(o, tiny_tok()) for o in (df, df.set_index(pd.Index([0]*len(df)))))
    for x,y in zip(a.train_ds.items+a.valid_ds.items, b.train_ds.items+b.valid_ds.items): assert torch.equal(x['ids'], y['ids']) and x['label']==y['label']
    assert one_epoch(pd.concat([df,df]))

@pytest.mark.parametrize('dtype', ['category','string','string[pyarrow]','large_string[pyarrow]', object])
@pytest.mark.parametrize('what', ['frame','language model'])
def test_string_columns_of_any_kind_work(dtype, what):
    if 'pyarrow' in str(dtype): pytest.importorskip('pyarrow')
    df = frame()
    typed = df.astype({'text':dtype, 'label':dtype})
    if what=='language model':
        x,y = (lm_dls(o, tiny_tok(), bs=4).valid.one_batch()[0] for o in (df, typed))
        assert torch.equal(x, y)
        return
    a,b = classifier_dls(df, tiny_tok()),classifier_dls(typed, tiny_tok())
    assert list(a.vocab)==list(b.vocab)==['a','b']
    for x,y in zip(a.train_ds, b.train_ds): assert torch.equal(x[0], y[0]) and int(x[1])==int(y[1])
    assert len(quiet(classifier_learner(b, tiny_arch('bert'))).get_preds()[0])==8

@pytest.mark.parametrize('dtype', ['boolean','int64','bool[pyarrow]', object])
def test_valid_columns_of_any_kind_work(dtype):
    if 'pyarrow' in str(dtype): pytest.importorskip('pyarrow')
    a,b = classifier_dls(frame(), tiny_tok()),classifier_dls(frame().astype({'is_valid':dtype}), tiny_tok())
    assert [o['label'] for o in a.valid_ds.items]==[o['label'] for o in b.valid_ds.items] and len(b.valid_ds)==8

def test_the_frame_is_left_as_it_was():
    df = frame(); old = df.copy(deep=True)
    one_epoch(df); lm_dls(df, tiny_tok())
    pd.testing.assert_frame_equal(df, old)

# ---- tokenizers and files

def test_a_model_that_is_not_there_is_one_sentence(without_fastai):
    code = "from fastformers.text.tokenizer import load_tokenizer\ntry: load_tokenizer('nobody/no-such-model')\nexcept OSError as e: print(e)"
    assert "No tokenizer for 'nobody/no-such-model': not a directory, not a shipped name (wiki-mini, minilm), not in the cache" in without_fastai(code)

def test_a_folder_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path/'file').write_text('not a folder')
    learn = classifier_learner(classifier_dls(frame(), tiny_tok()), tiny_arch('bert', num_hidden_layers=1))
    with pytest.raises(OSError, match='file'): learn.save_encoder(tmp_path/'file'/'out')
    assert [o.name for o in tmp_path.iterdir()]==['file'] and (tmp_path/'file').read_text()=='not a folder'

def test_a_checkpoint_cut_short_is_refused(tmp_path):
    dls = classifier_dls(frame(), tiny_tok())
    classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1)).save_encoder(tmp_path)
    f = tmp_path/'model.safetensors'
    f.write_bytes(f.read_bytes()[:f.stat().st_size//2])
    with pytest.raises(OSError, match='is not whole'): classifier_learner(dls, tmp_path)
