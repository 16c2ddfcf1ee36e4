"Families whose tokenizer is written in Python only: XLM and FlauBERT (Moses), ByT5 (bytes), CANINE (Unicode code points)"
import json, pytest
from transformers import ByT5Tokenizer, CanineConfig, CanineTokenizer, FlaubertConfig, FlaubertTokenizer, T5Config, XLMConfig, XLMTokenizer
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.mlm import WholeWordMLM
from fastformers.tasks.spans import SpanTokenizer
from fastformers.tasks.tags import WordTokenizer
from fastformers.testing import tiny_df
from fastformers.text.encode import HFTokenizer
from fastformers.text.store import TokenStore
from fastformers.text.tokenizer import extend_vocab, load_tokenizer, tok_hash

df = tiny_df()
texts = [*df.text, '', 'Été à Paris, 12 °C', '  two  spaces ', '日本語']
sizes = dict(emb_dim=32, n_layers=2, n_heads=2)
bert = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_hash_buckets=512, local_transformer_stride=16)
t5 = dict(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
families = ['XLM', 'FlauBERT', 'ByT5', 'CANINE']

def moses(cls, path):
    "A tokenizer of `cls` with letters and a few merges"
    pytest.importorskip('sacremoses')
    letters = sorted({c for t in texts for c in t+t.lower() if not c.isspace()})
    merges = ['t h', 'th e</w>', 'a n', 'an d</w>', 'i n', 'in g</w>']
    names = ['<s>', '</s>', '<pad>', '<unk>', *(f'<special{i}>' for i in range(10))]
    tokens = dict.fromkeys([*names, *letters, *(o+'</w>' for o in letters), *(o.replace(' ', '') for o in merges)])
    (path/'vocab.json').write_text(json.dumps({o:i for i,o in enumerate(tokens)}))
    (path/'merges.txt').write_text('\n'.join(merges)+'\n')
    return cls(path/'vocab.json', path/'merges.txt')

def tiny(family, path):
    "(tokenizer, config)"
    if family=='ByT5': return ByT5Tokenizer(), T5Config(**t5)
    if family=='CANINE': return CanineTokenizer(), CanineConfig(**bert)
    cls,config = (XLMTokenizer,XLMConfig) if family=='XLM' else (FlaubertTokenizer,FlaubertConfig)
    tok = moses(cls, path)
    return tok, config(vocab_size=len(tok), **sizes)

@pytest.mark.parametrize('family', families)
def test_ids_are_those_of_the_familys_own_call(family, tmp_path):
    tok,_ = tiny(family, tmp_path)
    h = HFTokenizer(tok)
    for t,x in zip(texts, h.encode_batch(texts)): assert x.ids.tolist()==tok(t).input_ids==h(t).ids.tolist()
    pairs = [(a,b) for a,b in zip(texts, texts[::-1])]
    for (a,b),x in zip(pairs, h.encode_batch(pairs)):
        own = tok(a, b, return_token_type_ids=True)
        assert x.ids.tolist()==own.input_ids and x.segment_ids.tolist()==own.token_type_ids
    for s in (*tok.all_special_tokens[:4], f'a {tok.pad_token} b'):
        inside = h(s).ids.tolist()[h.rust.encode('').sequence_ids.count(None)-1:-1]
        assert not {*inside} & ({*tok.all_special_ids}-{tok.unk_token_id})

@pytest.mark.parametrize('family', families)
def test_long_texts_are_cut_and_read_backwards(family, tmp_path):
    tok,_ = tiny(family, tmp_path)
    text = max(texts, key=len)
    full = tok(text).input_ids
    assert len(HFTokenizer(tok, 16)(text))==16 and HFTokenizer(tok, 16, 'tail')(text).ids.tolist()[-9:]==full[-9:]
    assert len(HFTokenizer(tok, 16, windows=3)(text))<=48 and HFTokenizer(tok, 16, windows=3)(text).sequence_starts.any()
    back = HFTokenizer(tok, backwards=True)
    assert back(text).ids.tolist()!=full and sorted(back(text).ids.tolist())==sorted(full) and back.decode(back(text))==HFTokenizer(tok).decode(HFTokenizer(tok)(text))

@pytest.mark.parametrize('family', families)
def test_all_stages(family, tmp_path):
    "Stage 2 where the family has a language model, stage 3, and the directory without fastai"
    tok,arch = tiny(family, tmp_path)
    if family=='ByT5': tok = extend_vocab(tok, mask_token='<extra_id_0>') # one of its own
    if family!='CANINE':
        lm = lm_learner(lm_dls(df, tok, seq_len=32, bs=8, device='cpu'), arch)
        with lm.no_bar(): lm.fit(1)
        assert lm.recorder.metric_names[-3:-1]==['accuracy','perplexity']
        arch = lm.save_encoder(tmp_path/'lm')
        assert tok_hash(load_tokenizer(arch))==tok_hash(tok) and HFTokenizer(arch)(texts[0]).ids.tolist()==tok(texts[0]).input_ids
    learn = classifier_learner(classifier_dls(df, tok if arch!=tmp_path/'lm' else arch, bs=8, device='cpu'), arch)
    if arch==tmp_path/'lm': assert not learn.model.loaded.new
    with learn.no_bar(): learn.fit(1)
    rows = [t for t in texts[:9] if t]
    dl = learn.dls.test_dl(rows)
    preds = learn.get_preds(dl=dl)[0]
    learn.save_encoder(tmp_path/'cl')
    predict = from_hf(tmp_path/'cl', 'cpu')
    assert (predict.scores(rows)-preds).abs().max()<1e-6
    assert len(predict(['', 'a']))==2

def test_a_store(tmp_path):
    tok = ByT5Tokenizer()
    store = TokenStore.build(texts[:5], tok, tmp_path/'s')
    assert store[0].ids.tolist()==tok(texts[0]).input_ids[:-1] and len(TokenStore(tmp_path/'s'))==5

def test_hash_knows_settings(tmp_path):
    x = moses(XLMTokenizer, tmp_path)
    keeps = XLMTokenizer(tmp_path/'vocab.json', tmp_path/'merges.txt', do_lowercase_and_remove_accent=False)
    assert len({*map(tok_hash, (x, keeps, ByT5Tokenizer(), extend_vocab(ByT5Tokenizer(), mask_token='<mask>')))})==4

def test_whole_words_of_moses(tmp_path):
    tok = moses(XLMTokenizer, tmp_path)
    mlm = WholeWordMLM(tok)
    x = mlm.tfm('the thing')[None]
    starts = mlm.word_starts(x)[0].tolist()
    assert [o for o,s in zip(tok.convert_ids_to_tokens(x.ids[0].tolist()), starts) if s]==['the</w>','th'] and sum(starts)==2

def test_what_needs_rust_says_so(tmp_path):
    tok = ByT5Tokenizer()
    for f in (lambda: WordTokenizer(tok), lambda: SpanTokenizer(tok), lambda: extend_vocab(tok, 'covid'), lambda: HFTokenizer(tok).between('a b', 0, 1),
              lambda: WholeWordMLM(extend_vocab(tok, mask_token='<mask>')).marks):
        with pytest.raises(TypeError, match='need a tokenizer in Rust, and ByT5Tokenizer is written in Python'): f()
