"Files as people have them, and pipes: read properly at every door, or named for what they are"
import gzip, io, json, logging, os, pickle, threading
import pandas as pd, pytest
from fastformers import cli
from fastformers.hub import resolve_arch
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner
from fastformers.data.block import classifier_dls
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.readers import read_texts
from fastformers.text.store import TokenStore
from fastformers.text.encode import HFTokenizer
from fastformers.ulmfit.recipe import DataConfig, Recipe, read_data, read_table
from transformers import AutoModelForMaskedLM

rows = [('a good film','fine'), ('bad, and long','dull'), ('one more café','fine')]
def csv(sep=',', head='text{}label', end='\n'):
    return end.join([head.format(sep), *(f'{a!r}{sep}{b}'.replace("'", '"') for a,b in rows), ''])
lines = [f'{{"text": "{a}", "label": "{b}"}}' for a,b in rows]
pointer = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n'
def coded(o): return o.encode() if isinstance(o, str) else o

read = {'bom.csv':'\ufeff'+csv(), 'excel.csv':'sep=;\r\n'+csv(';', end='\r\n'), 'bom and excel.csv':'\ufeff"sep=;"\n'+csv(';'), 'semicolons.csv':csv(';'),
    'tabs.csv':csv('\t'), 'bars.csv':csv('|'), 'commas.tsv':csv(), 'utf16.csv':csv().encode('utf-16'), 'utf16 tabs.csv':csv('\t').encode('utf-16'),
    'utf16 without a mark.csv':csv().encode('utf-16-le'), 'utf16.jsonl':'\n'.join(lines).encode('utf-16'), 'packed.csv':gzip.compress(csv().encode()),
    'packed':gzip.compress(csv().encode()), 'not packed.csv.gz':csv(), 'packed utf16.tsv.gz':gzip.compress(csv('\t').encode('utf-16')), 'array.jsonl':f"[{','.join(lines)}]",
    'array.json':'[\n '+',\n '.join(lines)+'\n]\n', 'lines.json':'\n'.join(lines), 'bom.json':'\ufeff['+','.join(lines)+']', 'lines.ndjson':'\n\n'.join(lines), 'packed array.jsonl':gzip.compress(f"[{','.join(lines)}]".encode()),
    'blank before.csv':csv(', ', 'text{}label'), 'blanks.csv':csv(',', ' text {} label '), 'quoted.csv':csv(', ', '"text"{}"label"'), 'no-break.csv':csv(',', 'text{}\xa0label'),
    'blank before.jsonl':'\n'.join(lines).replace('"label"', '" label"'), 'table.txt':csv('\t'), 'lines.txt':'\n'.join(lines), 'no suffix':csv(';'), 'old.csv.1':csv(),
    'UPPER.CSV':csv(), 'blank lines.csv':'\n\n'+csv(), 'mac.csv':csv(end='\r')}

named = {'pointer.csv':(pointer,'pointer of git-lfs.*git lfs pull'), 'pointer.jsonl':(pointer,'git-lfs'), 'pointer.txt':(pointer,'git-lfs'), 'sheet.xlsx':(b'PK\3\4..',r'Office.*pd.read_excel\(path\).to_csv.*save tables as csv'),
    'sheet.csv':(b'PK\3\4..','Office'), 'old.csv':(b'\xd0\xcf\x11\xe0..','Office'), 'table.parquet':(b'PAR1..',r'parquet.*pd.read_parquet\(path\).to_json'), 'paper.txt':(b'%PDF-1.7','PDF'), 'packed.csv.bz2':(b'BZh91AY','bzip2'),
    'packed.csv.xz':(b'\xfd7zXZ\0','xz'), 'folder.tar.gz':(gzip.compress(b'a.csv'.ljust(257, b'\0')+b'ustar'.ljust(255, b'\0')),'tar archive'), 'cut.csv.gz':(gzip.compress(csv().encode())[:-12],'ended before'),
    'windows.csv':(csv().encode('cp1252'),"pass its .*encoding.*, such as 'cp1252'"), 'columns.json':(pd.DataFrame(rows, columns=['text','label']).to_json(),'object a line, or an array'),
    'pretty.jsonl':('{\n "text": "a",\n "label": "b"\n}','object a line, or an array'), 'strings.jsonl':('"a"\n"b"\n','object a line'), 'cut.json':('[{"text": "a"},','cut.json: '), 'empty.json':('','no text|no rows|No objects'), 'frame.pkl':(pickle.dumps(pd.DataFrame(rows)),'a pickle')}

@pytest.mark.parametrize('written,read,says', [('cp1252','utf-8','cp1252'), ('utf-8','cp1252','utf-8')])
def test_another_encoding_than_the_one_that_failed_is_named(written, read, says, tmp_path):
    (tmp_path/'a.txt').write_bytes('Às vezes, à noite: Ábaco'.encode(written))
    with pytest.raises(ValueError, match=f"is not {read}.*such as '{says}'"): read_texts(tmp_path/'a.txt', encoding=read)

# ---- doors: each returns the texts that it read, and their labels if it reads those

class Seen(Exception): "In place of a training"

@pytest.fixture(scope='module')
def models(tmp_path_factory):
    "A directory of a tiny BERT, and one of a TF-IDF classifier"
    at = tmp_path_factory.mktemp('models')
    AutoModelForMaskedLM.from_config(tiny_arch('bert', num_hidden_layers=1)).save_pretrained(at/'bert')
    tiny_tok().save_pretrained(at/'bert')
    TextBaseline.fit(tiny_df().text+' of ours', tiny_df().label).save(at/'tfidf')
    return at

def columns(df): return df.text.tolist(),df.label.tolist()
def by_read_texts(path, *_): return columns(read_texts(path))
def by_parts(path, *_): return columns(pd.concat(read_texts(path, chunksize=2)))
def by_read_table(path, *_): return columns(read_table(path, DataConfig(), text_col='text', label_col='label'))
def by_recipe(path, *_): return columns(read_data(Recipe().replace(data=dict(source=str(path), test=str(path))))[3])
def by_store(path, models, tmp_path, _):
    store = TokenStore.build(path, tiny_tok(), tmp_path/'store')
    return [*map(tiny_tok().decode, (o.tolist() for o in store))],None
def by_command(name, *more):
    def run(path, models, tmp_path, monkeypatch):
        import fastformers.compare.leaderboard as board, fastformers.ulmfit.stage as stage
        seen = []
        def stop(df, *args, **kwargs): seen.append(df); raise Seen
        for at,f in ((board,'leaderboard'), (stage,'fine_tune_classifier'), (stage,'fine_tune_lm'), (stage,'pretrain_lm')): monkeypatch.setattr(at, f, stop)
        arch = ['--arch', str(models/'bert')] if name in ('adapt','classify') else []
        if cli.main([name, str(path), '--output', str(tmp_path/'out'), *more, *arch])==2 and not seen: raise ValueError(monkeypatch.err())
        return columns(seen[0]) if 'label' in seen[0] else (seen[0].text.tolist(),None)
    run.__name__ = f'by_{name}'
    return run
def by_predict(path, models, tmp_path, monkeypatch):
    if cli.main(['predict', str(models/'tfidf'), '--csv', str(path), '--out', str(tmp_path/'out.csv')]): raise ValueError(monkeypatch.err())
    sep = max(',;|', key=(tmp_path/'out.csv').read_text('utf-8-sig').partition('\n')[0].count) # as in the file that was read
    df = pd.read_csv(tmp_path/'out.csv', sep=sep, keep_default_na=False)
    assert ((df.get('predicted_label', df.label)!='')==(df.text.str.strip()!='')).all() # blank texts have no answer
    return columns(df) if 'predicted_label' in df else (df.text.tolist(),None)
def by_check(path, models, tmp_path, monkeypatch):
    import fastformers.interpret.checks as checks
    seen = []
    def stop(predictor, df, *args, **kwargs): seen.append(df); raise Seen
    monkeypatch.setattr(checks, 'checks', stop)
    if cli.main(['check', str(models/'tfidf'), str(path)])==2 and not seen: raise ValueError(monkeypatch.err())
    return columns(seen[0]) if 'label' in seen[0] else (seen[0].text.tolist(),None)

doors = pytest.mark.parametrize('door', [by_read_texts, by_parts, by_read_table, by_recipe, by_store, by_predict, by_check, *map(by_command, ('classify','compare','adapt','pretrain'))],
                                ids=lambda o: o.__name__[3:])
commands = pytest.mark.parametrize('door', [by_predict, by_check, *map(by_command, ('classify','compare','adapt','pretrain'))], ids=lambda o: o.__name__[3:])

@pytest.fixture
def patch(monkeypatch, capsys):
    monkeypatch.err = lambda: capsys.readouterr().err
    return monkeypatch

def agree(got, want=rows):
    "Compare texts, of a store as its tokens say them, and labels"
    texts,labels = [a for a,_ in want],[b for _,b in want]
    assert got[0] in (texts, [tiny_tok().decode(tiny_tok()(o, add_special_tokens=False).input_ids) for o in texts]) and got[1] in (labels,None)

@doors
@pytest.mark.parametrize('name', read)
def test_it_is_read(door, name, models, tmp_path, patch):
    (tmp_path/name).write_bytes(coded(read[name]))
    agree(door(tmp_path/name, models, tmp_path, patch))

@doors
@pytest.mark.parametrize('name', named)
def test_it_is_named(door, name, models, tmp_path, patch):
    data,why = named[name]
    (tmp_path/name).write_bytes(coded(data))
    with pytest.raises(ValueError, match=why): door(tmp_path/name, models, tmp_path, patch)

tasks = [{'id':1, 'data':{'text':'a good film'}, 'annotations':[{'result':[{'value':{'choices':['fine']}}]}], 'predictions':[]}]
tables = {'titled.csv':('Survey 2026,\n\n'+csv(), 'a title above the names of the columns.*Delete it'), 'titled and padded.csv':('Survey 2026;\n;\n'+csv(';'), 'a title above'),
          'narrow title.csv':('Survey 2026\n'+csv(), 'more fields than the header.*delete lines above'), 'full.json':(json.dumps(tasks), 'export JSON-MIN from Label Studio'),
          'full.jsonl':(json.dumps(tasks[0]), 'JSON-MIN'), 'headless.csv':('a film that is much too long,dull\na good film,fine\n', 'columns need names: a first line such as text,label')}

@commands
@pytest.mark.parametrize('name', tables)
def test_a_table_of_another_form_is_named(door, name, models, tmp_path, patch):
    data,why = tables[name]
    (tmp_path/name).write_text(data)
    with pytest.raises(ValueError, match=why): door(tmp_path/name, models, tmp_path, patch)

@pytest.mark.parametrize('sep,cells,want', [(';',['3,5','','-1,25','4'],[3.5,None,-1.25,4]), (';',['3,5','x'],None), (';',['1,200','3,5'],None), (';',['12,345','0,5'],None), (';',['0,125','2,5'],[.125,2.5]),
    (';',['1,2,3','1,2'],None), (',',['3,5','4,5'],None), ('\t',['3,5','4,5'],None), (';',['3','4'],[3,4])])
def test_numbers_with_a_decimal_comma_are_numbers_where_semicolons_separate(sep, cells, want, tmp_path):
    rows = pd.DataFrame({'text':[f'a film {i}' for i in range(len(cells))], 'label':cells})
    rows.to_csv(tmp_path/'a.csv', sep=sep, index=False)
    assert read_texts(tmp_path/'a.csv', as_written=True).label.tolist()==cells
    label = read_texts(tmp_path/'a.csv').label
    assert (label.tolist() if want is None else [None if o!=o else o for o in label])==(want or cells)

def test_a_column_is_named_as_in_the_file(tmp_path):
    "A misspelt name, other columns, a text column with a comma, a separator that is given"
    (tmp_path/'a.csv').write_text('Text;label;n\na, b;x;5\n')
    with pytest.raises(ValueError, match='columns are Text, label, n; did you mean Text'): read_table(tmp_path/'a.csv', DataConfig(), text_col='text')
    assert read_texts(tmp_path/'a.csv', 'Text').n.tolist()==[5]
    (tmp_path/'b.csv').write_text('text,a;b;c\nx,y;z\n')
    assert read_texts(tmp_path/'b.csv', 'other').columns.tolist()==['text','a;b;c']
    (tmp_path/'c.csv').write_text('one;two;label\na;b;x\n')
    assert read_table(tmp_path/'c.csv', DataConfig(text_col='one, two'), text_col='one, two').two.tolist()==['b']
    (tmp_path/'d.txt').write_text('a film, and text\nanother; one\n')
    assert read_texts(tmp_path/'d.txt').text.tolist()==['a film, and text','another; one']

# ---- answers as the file was written

def written(name, models, at, out, texts=('a film','one, more; with "quotes"\rand a lone return')):
    "The tables that commands write for a file `name` of sixty rows"
    df = tiny_df()[['text','label']]
    df.loc[0,'text'],df.loc[1,'text'] = texts
    sep,mark,pack = name
    data = (mark+df.to_csv(index=False, sep=sep, quoting=1, lineterminator='\r\n')).encode()
    (file := at/'rows.csv').write_bytes(gzip.compress(data) if pack else data)
    tfidf,more = models/'tfidf',['--out', at/out]
    commands = dict(predict=[tfidf,'--csv',file], slices=[tfidf,file], shares=[tfidf,file,'--audit',file])
    commands['label-issues'] = [file,'--arch',models/'bert']
    for k,args in commands.items():
        assert cli.main([k, *map(str, args+more)])==0
        yield k,df,(at/out).read_bytes().decode()

@pytest.mark.parametrize('sep,mark,pack,out', [(';','\ufeff',False,'out.csv'), (';','',True,'out'), (',','\ufeff',False,'out.csv'), ('|','',False,'out.tsv'), ('\t','',False,'out.csv'), (',','',False,'out.tsv')], ids=repr)
def test_a_table_is_written_as_it_was_read(sep, mark, pack, out, models, tmp_path):
    want = '\t' if out=='out.tsv' else sep.replace('\t', ',')
    for name,df,text in written((sep,mark,pack), models, tmp_path, out):
        assert text.startswith('\ufeff')==bool(mark), name
        back = pd.read_csv(io.StringIO(text.removeprefix('\ufeff'), newline=''), sep=want, keep_default_na=False)
        assert back.shape[1]>3
        if name=='predict': assert [*back][:3]==['text','label','predicted_label'] and back.text.tolist()==df.text.tolist()

@pytest.mark.parametrize('cells,want', [(['3,5','0,25'],','), (['3.5','0.25'],'.'), (['3','1,200'],'.'), (['','-12,5'],',')], ids=str)
def test_numbers_are_written_with_the_decimal_comma_of_the_file(cells, want, models, tmp_path):
    df = tiny_df()[['text','label']].assign(text=lambda o: o.text.str.replace(',', ''), cell=(cells*30)[:60])
    df.to_csv(file := tmp_path/'rows.csv', sep=';', index=False)
    for args in (['predict',models/'tfidf','--csv',file], ['slices',models/'tfidf',file], ['shares',models/'tfidf',file,'--audit',file], ['label-issues',file,'--arch',models/'bert']):
        assert cli.main([*map(str, args), '--out', str(tmp_path/'out.csv')])==0
        back = pd.read_csv(tmp_path/'out.csv', sep=';', decimal=want)
        scores = [o for o in ('predicted_score','score','naive') if o in back]
        assert len(scores)==1 and back[scores[0]].dtype==float, args[0]
        if args[0]=='predict': assert pd.read_csv(tmp_path/'out.csv', sep=';', dtype=str, keep_default_na=False).cell.tolist()==df.cell.tolist()

@pytest.mark.parametrize('encoding,marked', [('cp1252',True), ('utf-16',True), ('utf-8-sig',True), ('utf-8',False), ('UTF-8',False)])
def test_what_is_not_read_as_utf8_is_written_with_a_mark(encoding, marked, models, tmp_path):
    "Without it Excel reads UTF-8 as the encoding of Windows"
    (tmp_path/'rows.csv').write_text('text;n\ncafé;1\n', encoding)
    assert cli.main(['predict', str(models/'tfidf'), '--csv', str(tmp_path/'rows.csv'), '--encoding', encoding, '--out', str(tmp_path/'out.csv')])==0
    data = (tmp_path/'out.csv').read_bytes()
    assert data.startswith(b'\xef\xbb\xbf')==marked and 'café' in data.decode()

def test_whole_numbers_of_json_stay_whole(models, tmp_path):
    "A tweet's number has 19 digits, and some lines have none"
    (tmp_path/'a.jsonl').write_text('{"text": "a film", "id": 1234567890123456789, "n": 7, "x": 0.5}\n{"text": "a book"}\n')
    assert cli.main(['predict', str(models/'tfidf'), '--csv', str(tmp_path/'a.jsonl'), '--out', str(tmp_path/'out.csv')])==0
    df = pd.read_csv(tmp_path/'out.csv', dtype=str, keep_default_na=False)
    assert [df[o].tolist() for o in ('id','n','x')]==[['1234567890123456789',''],['7',''],['0.5','']]

def test_a_file_without_rows_is_no_folder(tmp_path):
    (tmp_path/'a.csv').write_text('text,label\n')
    with pytest.raises(ValueError, match='a.csv holds no text$'): read_texts(tmp_path/'a.csv')

@pytest.mark.parametrize('name', ['a.csv','folder'])
def test_a_file_to_be_labelled_that_holds_no_text_is_named(name, models, tmp_path, capsys):
    (tmp_path/'folder').mkdir(); (tmp_path/'a.csv').write_text('text\n')
    assert cli.main(['predict', str(models/'tfidf'), '--csv', str(tmp_path/name)])==2
    assert f'{tmp_path/name} holds no text' in capsys.readouterr().err

# ---- words and tags

tagged = {'plain':('Anna B\nsings O\n\nin O\nBerlin L\n',), 'no-break':('New\xa0York B\nis O\n\n\u3000x O\n', [['New\xa0York','is'],['\u3000x']]), 'numbers':('Anna 1\nsings 0\n\nBerlin 1\n', [['Anna','sings'],['Berlin']], [['1','0'],['1']]),
    'comments':('# id = 1\nAnna B\nsings O\n\n# a longer comment\n\n# note\nin O\nBerlin L\n',), 'in between':('Anna B\n# what comes now is a verb\nsings O\n\nin O\nBerlin L\n',),
    'tabs':('# text = Anna sings\nAnna\tB\nsings\tO\n\n#\nin\tO\nBerlin\tL\n',), 'hashtags':('# O\n#nlp B\n#1 O\n\nis O\n#\tO\n', [['#','#nlp','#1'],['is','#']], [['O','B','O'],['O','O']]), 'a rare tag':('#nlp HASH\nis O\n', [['#nlp','is']], [['HASH','O']]),
    'mark':('\ufeffAnna B\r\nsings O\r\n\r\nin O\r\nBerlin L\r\n',), 'utf16':('Anna B\nsings O\n\nin O\nBerlin L\n'.encode('utf-16'),), 'packed':(gzip.compress(b'Anna B\nsings O\n\nin O\nBerlin L\n'),),
    'blank lines':('-DOCSTART- X O\n\nAnna N B\nsings V O\n \t\n\n\xa0\nin P O\nBerlin N L',), 'numbered':('# sent_id = 1\n1\tAnna\tB\n2\tsings\tO\n\n1\tin\tO\n2\tBerlin\tL\n',),
    'universal':('# newdoc\n1-2\tAnnasings\t_\t_\t_\t_\t_\t_\t_\t_\n1\tAnna\tA\tB\tP\t_\t2\tn\t_\t_\n2\tsings\ts\tO\tV\t_\t0\tr\t_\t_\n\n1\tin\ti\tO\tV\t_\t0\tr\t_\t_\n1.1\tx\tx\tO\tV\t_\t0\tr\t_\t_\n2\tBerlin\tB\tL\tV\t_\t0\tr\t_\t_\n',)}

@pytest.mark.parametrize('name', tagged)
@pytest.mark.parametrize('suffix', ['.conll','.conllu'])
def test_words_and_tags(name, suffix, tmp_path):
    data,words,tags = (*tagged[name],None,None)[:3]
    (tmp_path/f'a{suffix}').write_bytes(coded(data))
    df = read_texts(tmp_path/f'a{suffix}')
    assert df.text.tolist()==(words or [['Anna','sings'],['in','Berlin']])
    if tags or not words: assert df.label.tolist()==(tags or [['B','O'],['O','L']])

def test_tags_that_are_numbers_are_tags(models, tmp_path):
    (tmp_path/'a.conll').write_text('Anna 1\nsings 0\n\nBerlin 1\n\n'*12)
    dls = classifier_dls(read_texts(tmp_path/'a.conll'), str(models/'bert'), task='tags', bs=4, device='cpu')
    assert list(dls.vocab)==['0','1']

@pytest.mark.parametrize('data', ['-DOCSTART- -X- O\n\nAnna N B\nsings V O\n', 'Anna\tB\nsings\tO\n\n'])
def test_words_and_tags_are_seen_without_a_suffix(data, tmp_path):
    (tmp_path/'train.txt').write_text(data)
    assert columns(read_texts(tmp_path/'train.txt'))==([['Anna','sings']],[['B','O']])

# ---- a folder of parts

@pytest.fixture
def folder(tmp_path):
    "Files of IMDb's layout: train and test with pos, neg and unsup, and unsup beside them"
    for i,part in enumerate(('train/pos','train/neg','train/unsup','test/pos','test/neg','unsup')):
        (tmp_path/'imdb'/part).mkdir(parents=True, exist_ok=True)
        for j in range(2): (tmp_path/'imdb'/part/f'{j}.txt').write_text(f'a film of {part}\nnumber {j}\n')
    (tmp_path/'imdb/README').write_text('read me'); (tmp_path/'imdb/other').mkdir()
    return tmp_path/'imdb'

def test_without_labels_every_part_is_read(folder, caplog):
    df = read_texts(folder, labels=False)
    assert len(df)==df.text.nunique()==12 and list(df)==['text','file'] and not caplog.records
    (folder/'valid/pos').mkdir(parents=True); (folder/'valid/pos/0.txt').write_text('a held-out film')
    df = read_texts(folder, labels=False)
    assert len(df)==13 and df[df.is_valid].text.tolist()==['a held-out film'] and not caplog.records
    assert len(read_texts(folder, labels=False, train='test', valid='valid'))==5 and 'the texts of train, unsup are left out' in caplog.messages[-1]

def test_with_labels_the_parts_that_are_left_out_are_said(folder, caplog):
    df = read_texts(folder)
    assert sorted({*df.label})==['neg','pos'] and len(df)==4
    assert len(caplog.messages)==1 and 'the texts of test, unsup, train/unsup are left out' in caplog.messages[0]
    caplog.clear()
    assert len(read_texts(folder/'test'))==4 and len(read_texts(folder/'unsup', labels=False))==2 and not caplog.records
    assert len(read_texts(folder/'train'))==4 and 'texts of unsup are' in caplog.messages[0]

def test_files_of_other_programs_are_no_texts(folder, caplog):
    for o in ('.ipynb_checkpoints/0.txt','__MACOSX/train/pos/._0.txt','train/neg/._0.txt','train/.git/a.txt','train/.ipynb_checkpoints/a.txt'):
        (folder/o).parent.mkdir(parents=True, exist_ok=True); (folder/o).write_bytes(b'\xff\0')
    df = read_texts(folder)
    assert sorted({*df.label})==['neg','pos'] and len(df)==4 and 'the texts of test, unsup, train/unsup are' in caplog.text
    assert len(read_texts(folder, labels=False))==12

def test_a_text_keeps_its_lines(tmp_path):
    (tmp_path/'x').mkdir()
    for i,o in enumerate((b'a\r\n\r\nb\x0cc\r\n', 'a\u2028b\n\n'.encode(), 'café\nb'.encode('utf-16'))): (tmp_path/'x'/f'{i}.txt').write_bytes(o)
    assert read_texts(tmp_path).text.tolist()==['a\n\nb\x0cc','a\u2028b\n','café\nb']

@commands
def test_a_pointer_in_a_folder_is_named(door, models, tmp_path, patch):
    (tmp_path/'d/x').mkdir(parents=True); (tmp_path/'d/x/1.txt').write_text(pointer)
    with pytest.raises(ValueError, match='git lfs pull'): door(tmp_path/'d', models, tmp_path, patch)

# ---- pipes

@pytest.fixture
def pipe(tmp_path):
    "Make a pipe that is read once: a name in a directory, or one as of the shell's <(zcat f)"
    threads,ends = [],[]
    def start(data, kind='fifo'):
        if kind=='fifo': os.mkfifo(at := tmp_path/f'pipe{len(threads)}')
        else: r,w = os.pipe(); at = f'/dev/fd/{r}'; ends.append(r)
        def write():
            with open(at if kind=='fifo' else w, 'wb') as f:
                try: f.write(coded(data))
                except BrokenPipeError: pass
        threads.append(threading.Thread(target=write, daemon=True)); threads[-1].start()
        return at
    yield start
    for o in ends: os.close(o)

kinds = pytest.mark.parametrize('kind', ['fifo','fd'])

@doors
@kinds
@pytest.mark.parametrize('name', ['table.txt','semicolons.csv','utf16.csv','packed.csv','array.jsonl','lines.json','excel.csv'])
def test_a_pipe_is_a_file(door, kind, name, models, tmp_path, patch, pipe):
    if door is by_recipe: pytest.skip('the source and the test rows of one pipe')
    agree(door(pipe(read[name], kind), models, tmp_path, patch))

def test_a_minus_is_standard_input():
    (r,w),old = os.pipe(),os.dup(0)
    os.write(w, b'text\na film\n'); os.close(w); os.dup2(r, 0)
    try: assert read_texts('-').text.tolist()==['a film']
    finally: os.dup2(old, 0); os.close(r); os.close(old)

long = {'lines':lambda n: ''.join(f'a film {i}\n' for i in range(n)), 'csv':lambda n: 'id,text\n'+''.join(f'{i:05},a film {i}\n' for i in range(n)),
        'packed':lambda n: gzip.compress(long['csv'](n).encode()), 'jsonl':lambda n: ''.join(f'{{"text": "a film {i}"}}\n' for i in range(n))}

@kinds
@pytest.mark.parametrize('form', long)
def test_every_row_of_a_pipe_is_answered(form, kind, models, tmp_path, patch, pipe, capsys):
    texts,_ = by_predict(pipe(long[form](5000), kind), models, tmp_path, patch)
    assert texts==[f'a film {i}' for i in range(5000)]
    assert cli.main(['predict', str(models/'tfidf'), '--csv', str(pipe(long[form](5000), kind))])==0
    df = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str)
    assert len(df)==5000 and df.label.notna().all() and (form not in ('csv','packed') or df.id[7]=='00007')

@pytest.mark.parametrize('text', ['null','5','5.5','true',None])
def test_a_row_without_a_text_does_not_lose_its_chunk(text, models, tmp_path, patch):
    rows = [f'{{"text": "a film {i}"}}' for i in range(4500)]
    rows[4300] = f'{{"text": {text}}}' if text else '{}'
    (tmp_path/'a.jsonl').write_text('\n'.join(rows))
    texts,_ = by_predict(tmp_path/'a.jsonl', models, tmp_path, patch)
    assert len(texts)==4500 and texts[4300].lower()==('' if text in ('null',None) else text) and texts[4301]=='a film 4301'

def test_a_line_that_ends_before_its_text_has_an_empty_one(models, tmp_path, patch):
    (tmp_path/'a.csv').write_text('id,text\n1,a film\n2\n3,another\n')
    assert by_predict(tmp_path/'a.csv', models, tmp_path, patch)[0]==['a film','','another']

@doors
def test_a_pipe_has_one_reader(door, models, tmp_path, patch, pipe):
    patch.setenv('WORLD_SIZE', '2'); patch.setenv('RANK', '0')
    why = 'one process' if door.__name__=='by_compare' else 'a pipe has one reader; write it to a file'
    at = pipe(csv())
    with pytest.raises(ValueError, match=why): door(at, models, tmp_path, patch)
    if door.__name__=='by_compare': at.read_bytes()

def test_what_a_pipe_is_read_as_is_said(pipe, caplog):
    caplog.set_level(logging.INFO, 'fastformers')
    assert len(read_texts(pipe('Review,stars\na film,5\n')))==2 and 'is read as txt, a text a line' in caplog.text

# ---- directories that hold no weights

def to_resolve(path): resolve_arch(path)
def to_tokenizer(path): HFTokenizer(str(path))
def to_learner(path): classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), str(path))
def to_predictor(path): from_hf(path)
def to_classify(path):
    tiny_df().to_csv(path.parent/'rows.csv', index=False)
    return cli.main(['classify', str(path.parent/'rows.csv'), '--arch', str(path), '--output', str(path.parent/'out')])
def to_predict(path): return cli.main(['predict', str(path), 'a text'])
def to_explain(path): return cli.main(['explain', str(path), 'a text'])

@pytest.mark.parametrize('door', [to_resolve, to_tokenizer, to_learner, to_predictor, to_classify, to_predict, to_explain], ids=lambda o: o.__name__[3:])
@pytest.mark.parametrize('files,why', [({'model.safetensors':pointer}, 'model.safetensors is a pointer of git-lfs.*git lfs pull'), ({'tokenizer.json':pointer}, 'tokenizer.json is a pointer'),
    ({'adapter_config.json':'{"peft_type": "LORA"}', 'config.json':None}, 'adapters of peft without their network.*merge_and_unload'),
    ({'model.safetensors':'half of a file'}, 'model.safetensors is not whole, fetch it again'), ({'modules.json':'[{"idx": 0,'}, 'modules.json is not whole'),
    ({'config.json':'{"model_type"'}, 'config.json is not whole'), ({'tokenizer_config.json':''}, 'tokenizer_config.json is not whole'),
    ({'config_sentence_transformers.json':'{'}, 'transformers.json is not whole')], ids=['weights','tokenizer','peft','half','modules','config','empty','prompts'])
def test_a_directory_is_named_for_what_it_is(door, files, why, models, tmp_path, patch):
    import shutil
    shutil.copytree(models/'bert', tmp_path/'arch')
    for k,v in files.items(): (tmp_path/'arch'/k).write_text(v) if v is not None else (tmp_path/'arch'/k).unlink()
    with pytest.raises(OSError, match=why):
        if door(tmp_path/'arch')==2: raise OSError(patch.err())

@pytest.mark.parametrize('run', ['-'*50_000, 'ab'*25_000, '😀'*50_000, 'abcdefghij'*5_000])
def test_a_repeated_run_costs_a_tokenizer_nothing(run):
    from fastformers.text.train_tokenizer import _shorter
    row = _shorter(f'a word {run} {"-"*199} and another')
    assert row==f'a word {run[:64]} {"-"*199} and another'
    assert _shorter('x'*100+' '+'abc'*60)=='x'*100+' '+'abc'*60
