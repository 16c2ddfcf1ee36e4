"Edges: what is explained at the limits, what is written into a directory that holds more, tables without rows and classes of one"
import logging, shutil
import numpy as np, pandas as pd, pytest, torch
from fastformers.cli import main
from fastformers.data.block import classifier_dls
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.inference.stage_json import read_stage
from fastformers.interpret.slices import label_issues
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.encode import first_texts
from fastformers.text.train_tokenizer import train_tokenizer
from fastformers.ulmfit.read_lm import small_config
from fastformers.ulmfit.stage import fine_tune_classifier
from test_contracts_common import quiet

df = tiny_df()
def network(family='bert', tok=None, **kw):
    tok = tiny_tok(family) if tok is None else tok
    dls = classifier_dls(df, tok, device='cpu')
    torch.manual_seed(0)
    learn = quiet(classifier_learner(dls, tiny_arch(family, **{'num_layers' if family=='t5' else 'num_hidden_layers':1}) if family!='funnel' else tiny_arch(family), **kw))
    learn.model.eval()
    return learn

def gap(p, text, at=0):
    "Compare the sum of the weights of integrated gradients with the change of the log-odds from a text of masks"
    e = p.explain(text, p.labels[at], 'integrated_gradients')
    x = p.tok.encode_batch([text])[0]
    mask = p.tok.tok.mask_token_id
    blank = x.replace(ids=torch.where(torch.isin(x.ids, torch.tensor([o for o in p.tok.tok.all_special_ids if o!=p.tok.tok.unk_token_id])), x.ids, int(p.tok.pad.ids) if mask is None else mask))
    def odds(x):
        with torch.no_grad(): o = p.model(p.tok.batch([x]))[0].double()
        return float(o[at]-torch.cat([o[:at],o[at+1:]]).logsumexp(0))
    return e.words.weight.sum(), odds(x)-odds(blank)

@pytest.mark.parametrize('family', ['bert','roberta','xlnet','t5','gpt2','funnel'])
def test_integrated_gradients_add_up_for_every_family(family):
    p = as_predictor(network(family))
    for text in ('A fine film, but long .', 'zzz  qqq — 1'):
        got,want = gap(p, text)
        assert got==pytest.approx(want, abs=.02+.05*abs(want))

def test_a_blank_of_its_own_belongs_to_a_word():
    tok = train_tokenizer(df.text.tolist(), vocab_sz=400)
    p,text = as_predictor(network('bert', tok)),'𝄞 ☃ fine ☃'
    assert '▁' in p.tok.rust.encode(text).tokens
    got,want = gap(p, text)
    assert got==pytest.approx(want, abs=.02+.05*abs(want))

def test_a_long_text_trains_a_tokenizer_in_parts(monkeypatch):
    "SentencePiece took minutes for a passage of 200,000 characters that occurred twice, in one text or in two"
    import sentencepiece
    seen,train = [],sentencepiece.SentencePieceTrainer.train
    def spy(sentence_iterator, **kw): train(sentence_iterator=iter([seen.append(o) or o for o in sentence_iterator]), **kw)
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, 'train', spy)
    long = ' '.join(df.text)*3
    tok = train_tokenizer([long, 'short', '', long], vocab_sz=400)
    assert max(map(len, seen))<2100 and ''.join(seen)==long+'short'+long
    text = df.text[9]
    assert tok.decode(tok(text).input_ids, skip_special_tokens=True)==text

def test_a_gpt_of_ones_own_is_opened_in_silence(tmp_path):
    "On opening it four tokens of padding were read, and transformers asked for an `attention_mask`"
    from transformers.utils import logging as hf_logging
    tok,said = train_tokenizer(df.text.tolist(), 'bpe', 400),[]
    dls = classifier_dls(df, tok, device='cpu')
    path = quiet(classifier_learner(dls, small_config(tok, family='gpt2', size=1))).to_hf(tmp_path/'o')
    hf_logging.get_logger('transformers').warning_once.__func__.cache_clear()
    handler = logging.Handler()
    handler.emit = lambda o: said.append(o.getMessage())
    logging.getLogger('transformers').addHandler(handler)
    try: from_hf(path, device='cpu')
    finally: logging.getLogger('transformers').removeHandler(handler)
    assert not said

def test_erasure_sees_odds_beyond_those_of_a_float():
    base = TextBaseline.fit(df.text.tolist(), df.label.tolist())
    base.tensors['weight'] = base.tensors['weight']*200
    for p in (base, Ensemble([base,base])):
        text = max(df.text, key=lambda o: float(torch.as_tensor(p.scores([o])).max()))
        assert float(torch.as_tensor(p.scores([text])).max())>1-1e-6
        assert (p.explain(text).words.weight.abs()>1e-3).any()

def test_a_graph_is_saved_and_opened_again(tmp_path):
    pytest.importorskip('onnxruntime')
    from fastformers.inference.onnx import to_onnx
    to_onnx(network().to_hf(tmp_path/'o'))
    p = from_hf(tmp_path/'o', 'cpu', backend='onnx')
    again = from_hf(p.save(tmp_path/'again'), 'cpu', backend='onnx')
    assert torch.equal(p.scores(['a fine film']), again.scores(['a fine film'])) and from_hf(tmp_path/'again', 'cpu')('a fine film')

@pytest.mark.parametrize('family,kw', [pytest.param('xlnet',{}, marks=pytest.mark.slow), ('fnet',dict(head='hf')), pytest.param('t5',{}, marks=pytest.mark.slow)], ids=str)
def test_a_graph_is_written_or_refused_in_a_sentence(family, kw, tmp_path):
    pytest.importorskip('onnxruntime')
    from fastformers.inference.onnx import to_onnx
    path = network(family, **kw).to_hf(tmp_path/'o')
    try: to_onnx(path)
    except ValueError as e: assert 'cannot write' in str(e) and len(str(e))<300
    else:
        a,b = (from_hf(path, 'cpu', backend=k).scores(['a fine film','bad']) for k in ('torch','onnx'))
        assert torch.allclose(a, b, atol=1e-3)
    assert not (path/'model.onnx').exists() or from_hf(path, 'cpu', backend='onnx')

def test_an_encoder_decoder_has_no_head_of_hugging_face():
    with pytest.raises(ValueError, match="t5 is an encoder-decoder.*without Hugging Face's own head"): network('t5', head='hf')

def test_a_frame_without_rows_has_no_answers():
    for p in (TextBaseline.fit(df.text.tolist(), df.label.tolist()), as_predictor(network())):
        for k in ({}, dict(top_k=2)): assert p.predict_frame(df[:0], **k).columns.tolist()==['text','label','is_valid','predicted_label','predicted_score']
        assert p.predict_frame(df[['text']][:0]).columns.tolist()==['text','label','score']

@pytest.mark.parametrize('labels', [['a']*9+['b'], ['a','b','c'], ['a']*5])
def test_suspects_need_two_rows_of_two_labels(labels):
    with pytest.raises(ValueError, match='two labels or more with two rows each'): label_issues(None, pd.DataFrame(dict(text=[f'text {i}' for i in range(len(labels))], label=labels)))
    assert label_issues(None, pd.DataFrame(dict(text=[f'text {i}' for i in range(9)], label=['a']*4+['b']*4+['c']))) is not None

def test_force_deletes_what_the_command_wrote(tmp_path):
    df.to_csv(tmp_path/'d.csv', index=False)
    args = ['compare', str(tmp_path/'d.csv'), '--output', str(tmp_path/'o'), '--entries', 'TF-IDF', '--seeds', '1']
    assert main(args)==0
    (tmp_path/'o/notes.txt').write_text('mine'); (tmp_path/'o/more').mkdir(); (tmp_path/'o/more/a.csv').write_text('mine')
    old = next((tmp_path/'o/fits').iterdir()).stat().st_mtime_ns
    assert main(args)==2 and main([*args,'--force'])==0
    assert (tmp_path/'o/notes.txt').read_text()==(tmp_path/'o/more/a.csv').read_text()=='mine'
    assert next((tmp_path/'o/fits').iterdir()).stat().st_mtime_ns>old

def test_an_old_linear_model_does_not_stay_beside_a_new_classifier(tmp_path):
    base = TextBaseline.fit(df.text.tolist(), df.label.tolist())
    base.save(tmp_path/'net_tfidf'); (tmp_path/'own_tfidf').mkdir(); (tmp_path/'own_tfidf/a.txt').write_text('mine')
    for k in ('net','own'): fine_tune_classifier(df, tiny_arch('bert', num_hidden_layers=1), tmp_path/k, tok=tiny_tok(), epochs=.2)
    assert not (tmp_path/'net_tfidf').exists() and (tmp_path/'own_tfidf/a.txt').exists()

def test_texts_as_long_as_novels_are_kept(tmp_path):
    "By what the network reads of them: with all characters the first text would be too much"
    df = tiny_df().drop(columns='is_valid')
    df['text'] = [f'{o} '*(600_000//len(o)) if i<4 else o for i,o in enumerate(df.text)]
    stage = fine_tune_classifier(df, tiny_arch('bert'), tmp_path/'c', tok=tiny_tok(), epochs=.1, max_len=16, windows=1)
    kept = from_hf(tmp_path/'c').kept
    assert len(kept.inputs)==len(stage.learner.dls.train_ds) and len(kept.distances)==len(stage.learner.dls.valid_ds)
    assert first_texts(['abcdef','g'], 5)==['abcdef'] and first_texts(['abc','de','f'], 5)==['abc'] and first_texts(['abcdef','ghi','j'], 5, 2)==['abcdef','ghi'] and first_texts([], 5)==[]
