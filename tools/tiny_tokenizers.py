"""Make the tokenizers of `fastformers.testing`, `fastformers/tiny/*.tokenizer.json`: `python tools/tiny_tokenizers.py`

They are trained on the tiny texts and some more English. Tests compare figures that depend on them, so change them only for a new style."""
import math
from collections import Counter
from pathlib import Path
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from fastformers.testing import tiny_df, tiny_pairs

root = Path(__file__).resolve().parent.parent

def words_of(t, texts):
    "Count the words that the pre-tokenizer of `t` finds in `texts`"
    texts = map(t.normalizer.normalize_str, texts)
    return Counter(w for o in texts for w,_ in t.pre_tokenizer.pre_tokenize_str(o))

def pieces_of(words, n, mark=''):
    "Return letters and the `n` most useful prefixes and suffixes (marked with `mark`) of `words`: {piece: count}"
    c = Counter()
    for w,k in words.items():
        for i in range(1, len(w)+1): c[w[:i]] += k
        for i in range(1, len(w)): c[mark+w[i:]] += k
        for o in w: c[mark+o] += k
    letters = sorted({p for w in words for o in w for p in (o, mark+o)})
    best = sorted((o for o in c.keys()-set(letters) if c[o]>1), key=lambda o: (-c[o]*len(o), o))
    return {o:max(c[o], 1) for o in letters+best[:n]}

def special_token(o): # <mask> takes the space before it
    return AddedToken(o, lstrip=o=='<mask>', special=True, normalized=False)

def bytelevel(texts, special):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer,t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False),decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [*map(special_token, special)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator(texts, trainer)
    return t

def wordpiece(texts, special):
    t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer,t.decoder = pre_tokenizers.BertPreTokenizer(),decoders.WordPiece()
    pieces = [*special, *pieces_of(words_of(t, texts), 600, '##')]
    t.model = models.WordPiece({o:i for i,o in enumerate(pieces)}, unk_token='[UNK]')
    return t

def unigram(texts, special):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer,t.decoder = pre_tokenizers.Metaspace(),decoders.Metaspace()
    c = pieces_of(words_of(t, texts), 600)
    n = sum(c.values())
    pieces = [(o, 0.) for o in special]+[(o, math.log(k/n)) for o,k in c.items()]
    t.model = models.Unigram(pieces, unk_id=special.index('<unk>'))
    return t

bert = dict(algo=wordpiece, special='[PAD] [UNK] [CLS] [SEP] [MASK]', one='[CLS] $A [SEP]', two='[CLS] $A [SEP] $B:1 [SEP]:1')
roberta = dict(algo=bytelevel, special='<s> <pad> </s> <unk> <mask>', one='<s> $A </s>', two='<s> $A </s> </s> $B </s>')
styles = dict( # name -> training function, special tokens in the order of their ids, templates (`:1` is the segment id)
    bert = bert, roberta = roberta, xlm_roberta = {**roberta, 'algo':unigram},
    funnel = {**bert, 'one':'[CLS]:2 $A [SEP]', 'two':'[CLS]:2 $A [SEP] $B:1 [SEP]:1'},
    xlnet = dict(algo=unigram, special='<unk> <s> </s> <cls> <sep> <pad> <mask>',
                 one='$A <sep> <cls>:2', two='$A <sep> $B:1 <sep>:1 <cls>:2'),
    gpt2 = dict(algo=bytelevel, after='<|endoftext|>'), # special tokens after the vocabulary: id 0 is an ordinary token
    llama = dict(algo=bytelevel, after='<|begin_of_text|> <|end_of_text|>', one='<|begin_of_text|> $A', two='<|begin_of_text|> $A $B'),
    t5 = dict(algo=unigram, special='<pad> </s> <unk>', one='$A </s>', two='$A </s> $B </s>'))

english = (root/'tools/tiny_english.txt').read_text('utf-8').splitlines()
pairs = tiny_pairs()
texts = [*tiny_df().text, *pairs.text_a.unique(), *pairs.text_b, *english]
for name,s in styles.items():
    special,after = s.get('special','').split(),s.get('after','').split()
    t = s['algo'](texts, special)
    t.add_special_tokens([*map(special_token, special+after)])
    ids = [(o,t.token_to_id(o)) for o in special+after]
    if 'one' in s: t.post_processor = processors.TemplateProcessing(single=s['one'], pair=s['two'], special_tokens=ids)
    (root/f'fastformers/tiny/{name}.tokenizer.json').write_text(t.to_str()+'\n', encoding='utf-8')
