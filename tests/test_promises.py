"Each promise of the design page names tests that exist"
import ast, json, re

def test_each_promise_names_tests_that_exist(root):
    cells = (''.join(o['source']) for o in json.loads((root/'nbs/design.ipynb').read_text('utf-8'))['cells'])
    rows = next(o for o in cells if '## What we promise' in o).split('|---|---|\n')[1].strip().splitlines()
    assert len(rows)==8
    for row in rows:
        named = re.findall(r'\[`(test_\w+)`\]\(\.\./(tests/test_\w+\.py)\)', row)
        assert named, f'a promise without a test: {row}'
        for test,file in named:
            tests = [o.name for o in ast.parse((root/file).read_text('utf-8')).body if isinstance(o, ast.FunctionDef)]
            assert test in tests, f'{file} has no {test}'
