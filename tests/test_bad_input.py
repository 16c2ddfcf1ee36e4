"What users really pass: each odd thing trains, or is refused at once in a sentence that names the row or the column and what to do"
import copy, json, logging, re
import numpy as np, pandas as pd, pytest, torch
from fastai.data.block import CategoryBlock, DataBlock
from fastai.data.transforms import ColReader, ColSplitter
from fastformers.data.block import HFTextBlock, classifier_dls, lm_dls
from fastformers.data.labels import warn_typos
from fastformers.inference.lm_predictor import LMPredictor
from fastformers.inference.baseline import TextBaseline
from fastformers.interpret.checks import checks
from fastformers.inference.predictor import from_hf
from fastformers.tasks.choice import Choice
from fastformers.tasks.spans import SpanTokenizer
from fastformers.tasks.tags import WordTokenizer
from fastformers.tasks.core import task_of
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.core import LanguageModel
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_spans, tiny_tags, tiny_tok
from fastformers.text.encode import HFTokenizer
from fastformers.text.core import valid_text
from fastformers.text.readers import read_texts
from fastformers.text.train_tokenizer import train_tokenizer
from fastformers.ulmfit import read_lm
from fastformers.ulmfit.stage import fine_tune_classifier, pretrain_lm
from transformers import AutoModelForMaskedLM

def tok(style='bert'): return tiny_tok(style)
doors = pytest.mark.parametrize('door', [classifier_dls,lm_dls], ids=lambda o: o.__name__)

def replaced(col, i, v):
    "The tiny reviews, `v` in row `i` of `col`"
    df = tiny_df().astype({col:object}); df.at[i,col] = v
    return df

def build(door, df, t=None, **kwargs): return door(df, tok() if t is None else t, bs=8, device='cpu', **kwargs)
def refused(door, df, kind, match, t=None, **kwargs):
    with pytest.raises(kind, match=match) as e: build(door, df, t, **kwargs)
    assert len(str(e.value))<500

@pytest.fixture
def log(caplog): caplog.set_level(logging.INFO, 'fastformers'); return caplog

# ---- texts

@doors
@pytest.mark.parametrize('text', [None, float('nan'), pd.NA, 7, True, b'fine', ['a','b','c'], pd.Timestamp('2020')], ids=repr)
def test_what_is_no_text_is_refused(door, text): refused(door, replaced('text', 5, text), TypeError, r"'text' holds .* in row 5; ")

@doors
def test_empty_texts_stay(door):
    df = replaced('text', 0, ''); df.at[7,'text'] = ' \n'
    dls = build(door, df)
    if door is classifier_dls: assert len(dls.train_ds)+len(dls.valid_ds)==60
    for x,*_ in dls.train: assert x.attention_mask.any(1).all()

@doors
@pytest.mark.parametrize('text', ['a fine film ' * 8_500, 'w'*100_000], ids=['words','one word'])
def test_a_very_long_text_is_cut(door, text):
    dls = build(door, replaced('text', 0, text), **({'max_len':64} if door is classifier_dls else {'seq_len':64}))
    assert max(x.shape[1] for x,*_ in dls.train)<=64

@doors
@pytest.mark.parametrize('style', ['bert','gpt2','xlnet'])
def test_emoji_nul_and_lone_surrogates_are_texts(door, style):
    df = tiny_df().astype(object)
    for i,o in enumerate(['👩‍👩‍👧 ❤️', 'a\0b', 'x \ud83d y \udc00', '\ufdd0\uffff']): df.at[i,'text'] = o
    for dl in build(door, df, tok(style)).loaders:
        for x,*_ in dl: assert x.attention_mask.any(1).all()

odd = 'x \ud83d\ude00 y \ud83d z \udc00 ' # a pair of surrogates, and two without a partner

@pytest.mark.parametrize('style', ['bert','roberta','xlm_roberta'])
def test_surrogates_shift_no_character(style):
    st,c = SpanTokenizer(tok(style)),odd+'Anna lives in Oslo.'
    (x,chars,_),(v,plain,_) = st.aligned([('Where?', c), ('Where?', valid_text(c))])
    assert torch.equal(x, v) and [valid_text(c[a:b]) for a,b in chars]==[valid_text(c)[a:b] for a,b in plain]
    df,cols = tiny_spans(),dict(text_col=['question','context'], label_col=['answer_text','answer_start'])
    def answers(df): return [st.tok.decode(x.ids[x.predicted][a:b+1]) for x,(a,b) in build(classifier_dls, df, tok(style), **cols).train_ds]
    assert answers(df.assign(context=odd+df.context, answer_start=df.answer_start+len(odd)))[0].strip()==answers(df)[0].strip()
    words = WordTokenizer(tok(style)).encode_batch([['a','\ud83d\ude00'*3,'good','film'], ['\ud83d','b']])
    assert [int(o.predicted.sum()) for o in words]==[4,2]

def test_surrogates_are_scored():
    lm = LMPredictor(LanguageModel(AutoModelForMaskedLM.from_config(tiny_arch('bert'))), HFTokenizer(tok()))
    a,b = lm.score([odd+'fine', valid_text(odd)+'fine']).to_numpy()
    assert a.tolist()==b.tolist() and np.isfinite(a).all()

def test_blank_texts_are_counted(log):
    df = tiny_df().assign(text=lambda d: d.text.where(d.index>2, ' \t'))
    build(classifier_dls, df)
    assert [o.message for o in log.records if 'blank' in o.message]==['3 of 60 texts are blank, and train as examples of their labels; drop such rows (`--drop-blank`)']
    refused(classifier_dls, df.assign(text=''), ValueError, 'all 60 texts are blank; is this the column of the texts?')
    log.clear(); build(classifier_dls, tiny_df()); build(lm_dls, df)
    assert not any('blank' in o.message for o in log.records)

@doors
def test_special_tokens_in_a_text_are_ordinary(door):
    t,df = tok(),tiny_df().assign(text=[f'[SEP] [MASK] [PAD] [CLS] {i}' for i in range(60)])
    ids = build(door, df, t).train_ds[0][0].ids
    assert not (ids[1:-1]==t.mask_token_id).any() and not (ids[1:-1]==t.sep_token_id).any()

@doors
def test_texts_in_training_and_validation_are_said(door, log):
    build(door, pd.concat([tiny_df(), tiny_df()[:2].assign(is_valid=True, text=lambda d: d.text.str.upper())]))
    assert '2 of 17 validation texts are also in training' in log.text

def test_new_texts_that_are_none_are_refused():
    dls = build(classifier_dls, tiny_df())
    for item in (None, 7, float('nan')):
        with pytest.raises(TypeError, match='(?i)expected (a text|texts)'): dls.test_dl([item]).one_batch()
    with pytest.raises(ValueError, match="'text' is not a column; columns are review"): dls.test_dl(pd.DataFrame({'review':['fine']}))
    block = DataBlock((HFTextBlock(tok()), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
    with pytest.raises(TypeError, match='(?i)expected (a text|texts)'): [*block.dataloaders(replaced('text', 2, float('nan'))).train]

# ---- columns

@doors
def test_a_missing_column_names_the_nearest(door):
    refused(door, tiny_df(), ValueError, "`text_col` 'txt' is not a column; columns are text, label, is_valid; did you mean text?", text_col='txt')
    refused(door, tiny_df(), ValueError, "`valid_col` 'valid' is not a column.*did you mean is_valid", valid_col='valid')
    if door is classifier_dls: refused(door, tiny_df(), ValueError, "`label_col` 'labels' is not .*did you mean label", label_col='labels')
    refused(door, tiny_df()[:0], ValueError, 'the data have no rows')
    refused(door, tiny_df()[['text','text','label','is_valid']], ValueError, "'text' is the name of 2 columns; rename or drop")
    refused(door, tiny_pairs().assign(text_c='x'), ValueError, 'a column or a pair of columns, got 3', text_col=['text_a','text_b','text_c'])

@doors
def test_columns_and_index_may_be_anything(door):
    want = build(door, tiny_df()).valid.one_batch()[0]
    odd = tiny_df().astype({'text':'category', 'label':'category', 'is_valid':'category'}).set_axis(range(3), axis=1)
    names = dict(text_col=0, valid_col=2) | ({'label_col':1} if door is classifier_dls else {})
    turned = dict(text_col=2, valid_col=0) | ({'label_col':1} if door is classifier_dls else {})
    for df,kw in ((odd[[2,1,0]].set_axis(range(3), axis=1), turned), (tiny_df(), dict(text_col=['text'])), (tiny_df().set_index(np.zeros(60, int)), {}), (odd, names), (tiny_df().astype({'text':'string'}), {})):
        assert (build(door, df, **kw).valid.one_batch()[0]==want).all()

@doors
@pytest.mark.parametrize('data,match', [('reviews.csv','got str; files are read by'), ({'train':tiny_df()},'got dict'), (None,'got NoneType')], ids=['path','parts','None'])
def test_what_is_no_table_is_refused(door, data, match): refused(door, data, TypeError, match)

# ---- the split

@doors
def test_flags_of_validation(door):
    want = build(door, tiny_df()).valid.one_batch()[0]
    for kind in (bool,int,float,object,str): assert (build(door, tiny_df().astype({'is_valid':kind})).valid.one_batch()[0]==want).all()
    for flag in ('valid', 2, None): refused(door, replaced('is_valid', 3, flag), ValueError, "column 'is_valid' must be True for validation and False for training, got")
    refused(door, tiny_df().assign(is_valid=False), ValueError, '0 of 60 rows are for validation')
    refused(door, tiny_df()[['text','label']][:1], ValueError, 'of 1 rows are for validation')

def test_a_label_only_in_validation_is_named(log):
    dls = build(classifier_dls, replaced('label', int(tiny_df().is_valid.argmax()), 'odd'))
    assert 'odd' in dls.vocab and 'training has no row of odd: 1 of 15 validation rows count as errors' in log.text
    refused(classifier_dls, tiny_df().assign(label=lambda d: d.label.where(~d.is_valid, d.label.str.upper())), ValueError, 'training has none of the labels of the validation rows: .*write them alike')
    refused(classifier_dls, tiny_df().assign(label=lambda d: [f'c{i}' for i in range(len(d))]), ValueError, "each row has a label of its own: is 'label' the column")

def test_a_class_with_a_single_row_is_a_class_in_either_part():
    held = 0
    for i in range(0, 60, 7):
        dls = build(classifier_dls, replaced('label', i, 'odd').drop(columns='is_valid'), valid_pct=.5)
        held += 'odd' in {dls.vocab[int(y)] for _,y in dls.valid_ds}
        assert 'odd' in dls.vocab
    assert 0<held<9

# ---- labels

def test_a_label_with_a_typo_is_named(caplog):
    build(classifier_dls, replaced('label', 4, tiny_df().label[5]+'e').drop(columns='is_valid'))
    assert re.search(r"label '\w+ee?' has 1 of 60 rows, '\w+' \d+; is it a typo", caplog.text)

def test_a_missing_column_of_test_rows_is_named():
    dls = build(classifier_dls, tiny_df())
    with pytest.raises(ValueError, match="`text_col` 'text' is not a column; columns are txt, label"): dls.test_dl(tiny_df()[['text','label']].rename(columns={'text':'txt'}))
    assert len(dls.test_dl(tiny_df()[['text']]).dataset)==60==len(dls.test_dl(tiny_df().text).dataset)

@pytest.mark.parametrize('label', [None, float('nan'), '', '  '], ids=repr)
def test_a_missing_label_is_refused(label): refused(classifier_dls, replaced('label', 4, label), ValueError, "1 of 60 rows have no label in column 'label', first row 4; leave them out \(`--drop-blank`")

def test_labels_that_number_the_rows_are_refused_and_names_train(log):
    rows = tiny_df().drop(columns='is_valid')
    refused(classifier_dls, rows.assign(label=range(60)), ValueError, 'each of the 60 labels occurs in one row; is this the right column?')
    dls = build(classifier_dls, rows.assign(label=[f'row {i}' for i in range(60)]))
    assert len(dls.vocab)==60 and len(dls.valid_ds)==1 and 'each of the 60 labels occurs in one row; is this the right column?' in log.text

def test_names_that_differ_in_case_or_blanks_are_said(log):
    warn_typos(['Account']*5+['account ']*4+['other']*4)
    assert [r.message for r in log.records]==["label 'account ' has 4 of 13 rows, 'Account' 5; is it a typo?"]

def test_a_setting_that_is_unknown_names_a_similar_one():
    with pytest.raises(TypeError, match="'epoch' is no argument of `fine_tune_classifier`; did you mean epochs"): fine_tune_classifier(tiny_df(), tiny_arch('bert'), tok=tok(), epoch=1)

def test_a_classifier_of_several_labels_that_answers_none_says_so(log):
    df = tiny_df().assign(label=[['a','b','c','d','e','f','g'][i%8:i%8+1] for i in range(60)]) # every eighth row has none
    fine_tune_classifier(df, tiny_arch('bert'), tok=tok(), task='multi', epochs=1., head_init='random')
    assert re.search('100% of the validation rows get no label, and [1-9]+% have none', log.text)
    assert re.search('no validation row gets .*, though some have it', log.text)

def test_dicts_are_no_labels(): refused(classifier_dls, replaced('label', 4, {'name':'a'}), ValueError, "column 'label' holds {'name': 'a'}; expected a name")

def test_labels_that_cannot_be_learnt_are_refused():
    refused(classifier_dls, tiny_df().assign(label='x'), ValueError, "'label' has only the class .* in training, expected two or more")
    refused(classifier_dls, tiny_df().assign(label='x').astype({'label':'category'}), ValueError, "'label' has only the class")
    refused(classifier_dls, tiny_df().assign(a=1, b=2), ValueError, 'hold 2, expected 0 and 1', label_col=['a','b'])
    refused(classifier_dls, tiny_df().assign(label=[1.5,float('inf')]+[2.25]*58), ValueError, "1 of 60 rows have an infinite number in 'label', first row 1; leave them out")
    refused(classifier_dls, tiny_df().assign(label=2.5), ValueError, "'label' has a standard deviation of 0 in training: a number to predict must be finite, and differ")
    refused(classifier_dls, tiny_df(), ValueError, 'expected a number such as 12.5', task='regression')
    refused(classifier_dls, tiny_df(), ValueError, "`task` 'regresion' is unknown; did you mean regression.*available: ", task='regresion')
    words = TextBaseline.fit(['good','bad']*5, ['pos','neg']*5)
    with pytest.raises(ValueError, match="`method` 'erasures' is unknown; did you mean erasure"): words.explain('good', method='erasures')
    with pytest.raises(ValueError, match="`which` 'typos' is unknown; did you mean typo"): checks(words, tiny_df(), which='typos')
    odd = tiny_tags(); odd.at[3,'label'] = ['O']
    refused(classifier_dls, odd, ValueError, r'row 3 has \d+ words, but 1 tags', task='tags')

def test_booleans_are_two_classes():
    for kind in (bool,object,'boolean'):
        dls = build(classifier_dls, tiny_df().assign(label=lambda d: d.label.eq('positive').astype(kind)))
        assert [bool(o) for o in dls.vocab]==[False,True] and task_of(dls).name=='single'
    learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert str(learn.predict('a fine film')[0]) in ('True','False')

@pytest.mark.parametrize('label,name,doubt', [
    (lambda d: d.label, 'single', None), (lambda d: d.label+'; x', 'multi', None), (lambda d: d.label.map(lambda o: [o]), 'multi', None), (lambda d: d.text.str.len()/10, 'regression', None),
    (lambda d: d.index%3, 'single', None), (lambda d: d.index//1, 'single', "60 distinct whole numbers in 60 rows.*task='regression'"),
    (lambda d: [f'{i%12}.5' for i in range(60)], 'single', "12 distinct numbers as text in 60 rows, each read as a class; for numbers to predict pass task='regression'"),
    *((lambda d, o=o: ['good','bad',o]*20, 'single', 'lists as text, .*JSON-MIN of Label Studio.*df.to_json') for o in ("['a', 'b']", '["a"]', '[0, 1]', '[]', '{"choices": ["a","b"]}', '[{"start": 0, "end": 4}]')),
    (lambda d: ['good','bad','[deleted]']*20, 'single', None),
    (lambda d: [1.,2.,3.]*20, 'regression', "few whole numbers; for classes pass task='single'")])
def test_what_was_understood_is_said(label, name, doubt, log):
    df = tiny_df(); df['label'] = label(df)
    try: dls = build(classifier_dls, df)
    except ValueError: assert doubt and 'distinct' in doubt; dls = None                        # each class has one row
    warned,said = [r.getMessage() for r in log.records if r.levelno>=logging.WARNING],log.text
    if doubt:
        assert len(warned)==1 and re.search(doubt, warned[0])
        log.clear(); build(classifier_dls, df, task='regression' if 'distinct' in doubt else 'single')
        assert not [r for r in log.records if r.levelno>=logging.WARNING]
    else: assert not warned
    if dls: assert task_of(dls).name==name and f'{name} (' in said and '45 training and 15 validation rows' in said and 'tokens' in said

def test_unknown_tokens_are_warned_of(log):
    df = tiny_df().assign(text=[f'数据 集 {i}' for i in range(60)])
    build(classifier_dls, df)
    assert any('unknown' in r.getMessage() for r in log.records if r.levelno>=logging.WARNING)

@pytest.mark.parametrize('words,how,warned', [(3000, {}, True), (3000, dict(max_len=32), False), (300, {}, False), (300, dict(max_len=32, windows=2), True)])
def test_texts_that_do_not_fit_into_their_windows_are_warned_of(words, how, warned, log):
    df = tiny_df()
    build(classifier_dls, df.assign(text=[' '.join([t]*(words//len(t.split()))) for t in df.text]), **how)
    assert warned==any('do not fit into' in r.getMessage() for r in log.records if r.levelno>=logging.WARNING)

# ---- numbers of any size

@pytest.mark.parametrize('scale,shift', [(1.,0.), (5515.,12_000.), (1e-4,0.)])
def test_numbers_of_any_size_are_learnt_and_answered_as_they_are(scale, shift, tmp_path):
    "Whether a text is long, times `scale`: predictions spread as the targets do"
    torch.manual_seed(0); np.random.seed(0)
    y = tiny_df().label.map(dict(negative=-1., neutral=0., positive=1.))
    df = tiny_df().assign(text=lambda d: d.label.map(dict(negative='bad', neutral='so so', positive='good'))+' '+d.text, price=y*scale+shift)
    dls = build(classifier_dls, df, label_col='price', task='regression')
    learn = classifier_learner(dls, tiny_arch('bert'))
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(12, 5e-3)
    p,y = learn.get_preds()
    assert y.numpy()==pytest.approx(df.price[df.is_valid].to_numpy(), rel=1e-5, abs=1e-8)        # in the numbers of the table
    assert abs(float(p.mean())-shift)<scale and .4<float(p.std())/scale<1.5 and np.corrcoef(p[:,0], y)[0,1]>.7
    values = dict(zip(learn.recorder.metric_names[2:-1], learn.validate()))
    assert values['_rmse']==pytest.approx(float((p[:,0]-y).pow(2).mean().sqrt()), rel=1e-3) and values['valid_loss']<2
    text = df.text[0]
    one = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')(text)[0]['score']
    assert one==pytest.approx(float(learn.predict(text)[2]), rel=1e-4, abs=1e-6*scale)

# ---- tokenizers and models

@doors
def test_a_tokenizer_without_pad_token_pads(door):
    t = copy.deepcopy(tok('gpt2')); t.pad_token = None; assert t.pad_token_id is None
    x = build(door, tiny_df(), t).train.one_batch()[0]
    assert not x.attention_mask.all() and x.attention_mask.any(1).all()

def test_a_tokenizer_that_does_not_fit_the_model_is_refused():
    for door,learner in ((classifier_dls,classifier_learner), (lm_dls,lm_learner)):
        with pytest.raises(ValueError, match=r'tokenizer has \d+ tokens, the model 50'): learner(build(door, tiny_df()), tiny_arch('bert', vocab_size=50))

def test_a_tokenizer_of_other_tokens_trains_no_classifier(tmp_path, log):
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path); tok().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="trained with another tokenizer: 100% of its tokens differ; build the dls with tok="):
        classifier_learner(build(classifier_dls, tiny_df(), tok('roberta')), tmp_path)
    assert lm_learner(build(lm_dls, tiny_df(), tok('roberta')), tmp_path) and 'another tokenizer' in log.text # learns them anew
    assert classifier_learner(build(classifier_dls, tiny_df(), tok('roberta')), tmp_path, pretrained=False)

def test_a_tokenizer_of_which_a_part_differs_is_told(tmp_path, log, monkeypatch):
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path); tok().save_pretrained(tmp_path)
    for share,told in ((.95,False), (.7,True)):
        monkeypatch.setattr('fastformers.learner.vocab.same_ids', lambda *args: share)
        classifier_learner(build(classifier_dls, tiny_df(), tok()), tmp_path)
        assert ('30% of its tokens differ' in log.text)==told

@pytest.mark.parametrize('key,bad', [('temperature',0.), ('temperature',float('nan')), ('temperature',-1.), ('labels','abc')])
def test_a_classifier_with_impossible_settings_is_refused(key, bad, tmp_path):
    f = classifier_learner(build(classifier_dls, tiny_df()), tiny_arch('bert')).to_hf(tmp_path/'o')/'classifier.json'
    d = json.loads(f.read_text())
    d['task'][key] = bad
    f.write_text(json.dumps(d))
    with pytest.raises(ValueError, match=f'classifier.json is damaged or of another version: .*{key}.* {bad!r}'): from_hf(f.parent)

# ---- what a cold reading found

def test_a_missing_text_is_named_by_its_row():
    df = replaced('text', 7, None).assign(is_valid=[i<6 for i in range(len(tiny_df()))])
    df.index = [f'row {i}' for i in range(len(df))]
    with pytest.raises(TypeError, match='in row row 7'): fine_tune_classifier(df, tiny_arch('bert'), tok=tok())
    with pytest.raises(TypeError, match='missing texts'): train_tokenizer(['a', float('nan')])

@pytest.mark.parametrize('objective,family', [('clm','gpt2, llama'), ('rtd','electra'), ('plm','xlnet')])
def test_a_family_that_cannot_learn_the_objective_is_named_before_a_tokenizer_is_trained(objective, family, monkeypatch):
    monkeypatch.setattr(read_lm, 'train_tokenizer', lambda *a,**kw: pytest.fail('a tokenizer was trained'))
    with pytest.raises(ValueError, match=f'does not fit the `family` modernbert; one that does: {family}'):
        pretrain_lm(tiny_df(), objective=objective)
    with pytest.raises(ValueError, match='MLM does not fit the `family` gpt2; one that does: modernbert, bert'):
        pretrain_lm(tiny_df(), objective='mlm', family='gpt2')

def test_several_numbers_have_the_names_of_their_columns():
    df = tiny_df().assign(x=np.arange(60)*.5, y=np.arange(60)%7*1.3, z=[[1.,2.]]*60)
    assert task_of(classifier_dls(df, tiny_tok('bert'), label_col=['x','y'])).labels==['x','y']
    with pytest.raises(ValueError, match='a column of its own'): classifier_dls(df, tiny_tok('bert'), label_col='z', task='regression')

def test_numbers_with_an_empty_cell_stay_numbers(tmp_path):
    (tmp_path/'a.csv').write_text('text,label,name\none,1.5,x\ntwo,,\nthree,2.5,y\n')
    df = read_texts(tmp_path/'a.csv')
    assert df.label.dtype.kind=='f' and df.label.isna().tolist()==[False,True,False] and df.name.tolist()==['x','','y']
    refused(classifier_dls, df, ValueError, 'no label')
    (tmp_path/'ids.csv').write_text('text,id\na,1234567890123456789\nb,\nc,inf\n')
    assert read_texts(tmp_path/'ids.csv').id.tolist()==['1234567890123456789','','inf']
    stars = tiny_df().assign(label=['' if i==3 else str(1+i%2) for i in range(len(tiny_df()))])
    stars.to_csv(tmp_path/'stars.csv', index=False)
    df = read_texts(tmp_path/'stars.csv')
    refused(classifier_dls, df, ValueError, 'no label')
    assert task_of(build(classifier_dls, df.dropna())).labels==[1,2]
    answers = tiny_spans().astype({'answer_start':object})
    answers.loc[3,['answer_text','answer_start']] = ''
    answers.to_csv(tmp_path/'answers.csv', index=False)
    df = read_texts(tmp_path/'answers.csv', ['question','context'])
    assert task_of(build(classifier_dls, df, text_col=['question','context'], label_col=['answer_text','answer_start'])).blanks

def test_a_lone_quote_in_a_tsv_is_said(tmp_path, caplog):
    (tmp_path/'a.tsv').write_text('text\tlabel\n"He said\tx\nb\ty\nc" d\tz\n')
    assert len(read_texts(tmp_path/'a.tsv'))==1 and 'has a lone " joined rows' in caplog.text

def test_a_mark_at_the_start_of_a_file_is_no_text(tmp_path):
    (tmp_path/'a.jsonl').write_bytes(b'\xef\xbb\xbf{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n')
    assert read_texts(tmp_path/'a.jsonl').text.tolist()==['one','two']

@pytest.mark.parametrize('col,what', [('text','words'), ('label','tags')])
def test_a_missing_list_is_named(col, what):
    df = tiny_tags().astype({col:object}).copy()
    df.at[3,col] = None
    refused(classifier_dls, df, ValueError, f'row 3 has no {what}', task='tags')

def test_the_second_text_of_a_long_pair_may_be_empty():
    for pair in (('a long text '*20, ''), ('', 'a long text '*20)):
        x = HFTokenizer(tok(), max_len=16, windows=4)(pair)
        assert len(x)<=64 and x.sequence_starts.sum()>1

def test_rows_without_a_group_are_refused():
    df = tiny_df().assign(who=[None if i%3==0 else i//4 for i in range(len(tiny_df()))])
    refused(classifier_dls, df, ValueError, "no 'who'", group_col='who')

def test_the_number_of_a_candidate_that_is_the_text_of_another_is_refused():
    with pytest.raises(ValueError, match='fits none or two of the candidates .*expected the text of .* or its number from 0 to 2'): Choice()._number(2, ['2','4','6'])
    assert Choice()._number('2', ['2','4','6'])==0 and Choice()._number(1, ['0','1','2'])==1 and Choice()._number(2, ['a','b','c'])==2

def test_names_joined_by_semicolons_are_several_labels():
    base = TextBaseline.fit(['late bill','wrong bill','late'], ['late;bill','bill','late'], 'multi')
    assert base.labels==['bill','late']
    with pytest.raises(TypeError, match='strings, got nan'): TextBaseline.fit(['late',float('nan')], ['a','b'])
    for missing in (None, float('nan'), pd.NA):
        for labels in (['a',missing], pd.Series(['a',missing], dtype=object)):
            with pytest.raises(ValueError, match='expected a label for each text, got .* at position 1'): TextBaseline.fit(['late','bill'], labels)

def test_a_file_that_was_predicted_before_keeps_its_columns():
    base = TextBaseline.fit(['good','bad']*5, ['pos','neg']*5)
    df = pd.DataFrame({'text':['good'], 'label':['neg']})
    once = base.predict_frame(df)
    assert [*once]==['text','label','predicted_label','predicted_score']
    with pytest.raises(ValueError, match='predicted_label, predicted_score exist'): base.predict_frame(once)

def test_a_threshold_that_would_do_nothing_is_refused():
    base = TextBaseline.fit(['good','bad','so so']*5, ['pos','neg','none']*5)
    with pytest.raises(ValueError, match='`threshold` needs'): base('good', threshold=.9)

@pytest.mark.parametrize('how', ['threshold','abstain_below'])
@pytest.mark.parametrize('much', [50, 1.01, -.1])
def test_a_share_of_a_hundred_is_refused(how, much):
    base = TextBaseline.fit(['good','bad']*5, ['y','n']*5)
    for ask in (lambda **kw: base('good', **kw), lambda **kw: base.predict_frame(pd.DataFrame({'text':['good']}), **kw)):
        with pytest.raises(ValueError, match=f'`{how}` is a score from 0 to 1 such as .8, got'): ask(**{how:much})

def test_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    TextBaseline.fit(['good','bad']*5, ['pos','neg']*5).save('~/model')
    assert from_hf('~/model')('good')[0]['label']=='pos'
