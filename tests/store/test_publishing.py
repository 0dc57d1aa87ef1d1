"""Names that readers use: views that lead to the tables of a pipeline."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from millwheel.errors import UsageError
from millwheel.store.console import administration
from millwheel.store.copies.publishing import list_published, publish, unpublish
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest


@pytest.fixture
def shop(schema: Schema) -> Schema:
    """A pipeline with two tables of its own."""
    schema.query("CREATE TABLE {totals} (shop text PRIMARY KEY, total bigint)", totals="totals")
    schema.query("CREATE TABLE {odd} (n integer)", odd='an "odd" name')
    schema.query("INSERT INTO {totals} VALUES ('north', 7)", totals="totals")
    return schema


def names(shop: Schema) -> dict[str, str]:
    return {one.words: f"{one.pipeline}.{one.table}" for one in list_published(shop.url)}


def test_each_own_table_has_a_name(shop: Schema) -> None:
    found = publish(shop.url, shop.name, "shop_out")
    assert found.made == ['an "odd" name', "totals"]
    assert names(shop) == {
        'shop_out.an "odd" name': f'{shop.name}.an "odd" name',
        "shop_out.totals": f"{shop.name}.totals",
    }
    assert shop.query("SELECT * FROM shop_out.totals") == [("north", 7)]
    again = publish(shop.url, shop.name, "shop_out")
    assert (again.made, again.changed) == ([], [])


def test_new_tables_and_columns_follow(shop: Schema) -> None:
    publish(shop.url, shop.name, "shop_out", ["totals"])
    assert names(shop) == {"shop_out.totals": f"{shop.name}.totals"}
    shop.query("CREATE TABLE {later} (n integer)", later="later")
    shop.query("ALTER TABLE {totals} ADD COLUMN note text", totals="totals")
    shop.query("CREATE VIEW public.dear AS SELECT * FROM shop_out.totals")
    assert shop.query("SELECT * FROM shop_out.totals") == [("north", 7)]
    found = publish(shop.url, shop.name, "shop_out")
    assert found.made == ['an "odd" name', "later"]
    assert found.changed == ["totals: new column note"]
    assert shop.query("SELECT * FROM shop_out.totals") == [("north", 7, None)]
    shop.query("DROP VIEW public.dear")


@pytest.mark.parametrize("taken", ["TABLE", "VIEW"])
def test_a_name_of_somebody_else_stays(shop: Schema, taken: str) -> None:
    shop.query("CREATE SCHEMA shop_out")
    shop.query(f"CREATE {taken} shop_out.totals AS SELECT 1 AS one")
    with pytest.raises(UsageError, match=r"there is a shop_out\.totals already"):
        publish(shop.url, shop.name, "shop_out")
    assert shop.query("SELECT * FROM shop_out.totals") == [(1,)]
    assert names(shop) == {}


def test_words_that_do_not_fit(shop: Schema) -> None:
    def refused(*args: Any) -> str:
        with pytest.raises(UsageError) as caught:
            publish(shop.url, *args)
        return str(caught.value)

    assert "no table 'total' of its own" in refused(shop.name, "out", ["total"])
    assert "Did you mean totals?" in refused(shop.name, "out", ["total"])
    assert "is the schema of a pipeline" in refused(shop.name, shop.name)
    assert "a schema of Postgres itself" in refused(shop.name, "pg_catalog")
    assert "no pipeline 'nowhere'" in refused("nowhere", "out")
    with pytest.raises(UsageError, match="'out' has no published name at all of pipeline"):
        unpublish(shop.url, shop.name, "out")


def test_readers_of_a_table_read_its_name(shop: Schema) -> None:
    roles = [f"{shop.name}_{part}_of_names" for part in ("reader", "clerk", "stranger")]
    for role in roles:
        shop.query(f"CREATE ROLE {role}")
    reader, clerk, stranger = roles
    try:
        shop.query(f"GRANT SELECT ON {{totals}} TO {reader}", totals="totals")
        shop.query(f"GRANT SELECT (shop) ON {{totals}} TO {clerk}", totals="totals")
        publish(shop.url, shop.name, "shop_out")

        def read(role: str, columns: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(shop.url) as connection:
                connection.execute(f"SET ROLE {role}")
                return connection.execute(f"SELECT {columns} FROM shop_out.totals").fetchall()

        assert read(reader, "*") == [("north", 7)]
        assert read(clerk, "shop") == [("north",)]
        for role, columns in ((clerk, "total"), (stranger, "shop")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                read(role, columns)
    finally:
        for role in roles:
            shop.query(f"DROP OWNED BY {role}")
            shop.query(f"DROP ROLE {role}")


def test_a_name_in_use_is_not_dropped(shop: Schema) -> None:
    publish(shop.url, shop.name, "shop_out")
    shop.query("CREATE VIEW public.dear AS SELECT * FROM shop_out.totals")
    with pytest.raises(UsageError, match=r"view public\.dear depends on view shop_out\.totals"):
        unpublish(shop.url, shop.name, "shop_out")
    assert len(names(shop)) == 2
    unpublish(shop.url, shop.name, "shop_out", ['an "odd" name'])
    assert names(shop) == {"shop_out.totals": f"{shop.name}.totals"}
    shop.query("DROP VIEW public.dear")


def test_a_pipeline_that_readers_use_is_not_dropped(shop: Schema) -> None:
    publish(shop.url, shop.name, "shop_out")
    with pytest.raises(UsageError, match=r"readers use its tables as .*shop_out\.totals"):
        administration.drop_pipeline(shop.url, shop.name)
    assert shop.query("SELECT * FROM shop_out.totals") == [("north", 7)]
    unpublish(shop.url, shop.name, "shop_out")
    administration.drop_pipeline(shop.url, shop.name)
