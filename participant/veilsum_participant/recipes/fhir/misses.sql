-- FHIR R4: how much of what the tables hold cohort.sql, encounters.sql and observations.sql leave aside, and why. For the site's own eyes:
-- `veilsum participant check --schema` asks it where the dataset names it as misses_file, and no study ever does.
-- Tables: patient, condition, observation, encounter, as of cohort.sql. Each row: of how many things (of) how many (number) are so
-- (what), and whether that is meant to be left aside; where number is NULL, how many there are.
WITH RECURSIVE
@systems,
@persons,
@resource name=diagnosis table=condition type=Condition,
@resource name=result table=observation type=Observation,
@resource name=stay table=encounter type=Encounter,
@misses name=diagnosis table=condition type=Condition,
@misses name=result table=observation type=Observation,
@misses name=stay table=encounter type=Encounter,
patient_misses AS (
    SELECT 'Patient: read' AS what, NULL AS number, count(*) AS of FROM versions
    UNION ALL
    SELECT
        unnest([
            'Patient: has no id',
            'Patient: is an older version, or the same again',
            'Patient: has an id that several servers gave, and counts as one of all these',
            'Patient: was replaced by another',
            'Patient: was replaced by several, or by one who does not count',
            'Patient: was replaced by what another says, and counts as well',
            'Patient: has no sex that is female or male',
            'Patient: has no year of birth',
            'Patient: has no word on whether they died',
            'Patient: is not in active use, and counts'
        ]),
        unnest([
            (SELECT count(*) FROM versions WHERE patient IS NULL),
            (SELECT count(*) - count(DISTINCT patient) FROM versions WHERE patient IS NOT NULL),
            (
                SELECT count(*)
                FROM (
                    SELECT patient
                    FROM versions
                    GROUP BY patient
                    HAVING count(DISTINCT nullif(regexp_extract(lower(url), '^https?://(.+)/patient/', 1), '')) > 1
                )
            ),
            (SELECT count(*) FROM latest WHERE len(successors) > 0),
            (SELECT count(*) FROM latest WHERE len(successors) > 0 AND patient NOT IN (SELECT name FROM names)),
            (
                SELECT count(DISTINCT called.patient)
                FROM (
                    SELECT
                        @name of=link.other.reference type=Patient as=name
                    FROM (SELECT unnest(resource.link) AS link FROM persons)
                    WHERE link.type = 'replaces'
                ) AS replaced
                JOIN called ON called.name = replaced.name
                JOIN persons ON persons.patient = called.patient
            ),
            (SELECT count(*) FROM persons WHERE coalesce(resource.gender, '') NOT IN ('female', 'male')),
            (SELECT count(*) FROM persons WHERE try_cast(substr(resource.birthDate, 1, 4) AS INTEGER) IS NULL),
            (
                SELECT count(*) FROM persons
                WHERE resource.deceasedDateTime IS NULL AND coalesce(resource.deceasedBoolean, '') NOT IN ('true', 'false')
                    AND coalesce(resource.deceasedBoolean, resource._deceasedBoolean, resource._deceasedDateTime) IS NOT NULL
            ),
            (SELECT count(*) FROM persons WHERE resource.active = 'false')
        ]),
        (SELECT count(*) FROM versions)
    UNION ALL
    @left name=latest type=Patient
    UNION ALL
    @deep table=patient type=Patient
),
@measured,
@visits,
judged AS (
    SELECT
        resource,
        (
            @refuted
        ) AS refuted,
        (
            @suspected
        ) AS suspected
    FROM diagnosis
),
codings AS (
    SELECT 'Condition' AS type, row_number() OVER () AS place, resource.code.coding AS codings FROM judged WHERE NOT refuted
    UNION ALL
    SELECT 'Observation', part, item.code.coding FROM parts
),
coded AS (
    SELECT
        codings.type,
        codings.place,
        codings.coding.system AS system,
        systems.kind
    FROM (SELECT type, place, unnest(codings) AS coding FROM codings) AS codings
    LEFT JOIN systems ON @system coding=codings.coding
),
unknown AS (
    -- Resources, and components of a panel, none of whose codes is of a system that the queries know for their type.
    SELECT type, place, list(DISTINCT coalesce(system, 'none')) AS own
    FROM coded
    GROUP BY type, place
    HAVING NOT bool_or(coalesce(if(type = 'Condition', kind IN ('snomed', 'icd-10'), kind = 'loinc'), false))
),
system_misses AS (
    SELECT
        types.type || ': has no code' AS what,
        (SELECT count(*) FROM codings WHERE codings.type = types.type AND coalesce(len(codings.codings), 0) = 0) AS number,
        (SELECT count(*) FROM codings WHERE codings.type = types.type) AS of
    FROM (VALUES ('Condition'), ('Observation')) AS types(type)
    UNION ALL
    SELECT
        types.type || ': has codes of unknown systems alone',
        (SELECT count(*) FROM unknown WHERE unknown.type = types.type),
        (SELECT count(*) FROM codings WHERE codings.type = types.type)
    FROM (VALUES ('Condition'), ('Observation')) AS types(type)
    UNION ALL
    (
        SELECT type || ': of these, code system ' || left(system, 200), count(*), (SELECT count(*) FROM unknown WHERE unknown.type = of_system.type)
        FROM (SELECT type, unnest(own) AS system FROM unknown) AS of_system
        GROUP BY type, system
        ORDER BY count(*) DESC, system
        LIMIT 10
    )
),
value_misses AS (
    SELECT
        unnest([
            'Condition: is refuted or entered in error',
            'Condition: is a suspicion, and counts',
            'Observation: is not final, amended or corrected',
            'Observation: is about somebody else than its patient',
            'Observation: is a component with an extension that changes its meaning',
            'Encounter: is planned, cancelled or entered in error',
            'Encounter: has a class of an unknown system',
            'Encounter: has a class other than inpatient, outpatient and emergency',
            'Encounter: is part of another of its kind',
            'Encounter: ends before it begins'
        ]) AS what,
        unnest([
            (SELECT count(*) FROM judged WHERE refuted),
            (SELECT count(*) FROM judged WHERE suspected AND NOT refuted),
            (SELECT count(*) FROM result WHERE coalesce(resource.status, '') NOT IN ('final', 'amended', 'corrected')),
            (
                SELECT count(*) FROM result
                WHERE resource.status IN ('final', 'amended', 'corrected')
                    AND @focused
            ),
            (
                SELECT count(*)
                FROM (
                    SELECT unnest(resource.component) AS item
                    FROM result
                    WHERE resource.status IN ('final', 'amended', 'corrected')
                        AND NOT @focused
                )
                WHERE item.modifierExtension IS NOT NULL
            ),
            (SELECT count(*) FROM stay WHERE NOT coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')),
            (
                SELECT count(*) FROM stay
                WHERE coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')
                    AND NOT @classed
            ),
            (
                SELECT count(*) FROM stay
                WHERE coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')
                    AND coalesce(resource.class.code, '') NOT IN ('IMP', 'ACUTE', 'NONAC', 'AMB', 'EMER')
                    AND @classed
            ),
            (SELECT count(*) FROM counted) - (SELECT count(*) FROM visits),
            (
                SELECT count(*) FROM stay
                WHERE try_cast(substr(resource.period."end", 1, 10) AS DATE) < try_cast(substr(resource.period.start, 1, 10) AS DATE)
            )
        ]) AS number,
        unnest([
            (SELECT count(*) FROM diagnosis),
            (SELECT count(*) FROM diagnosis),
            (SELECT count(*) FROM result),
            (SELECT count(*) FROM result),
            (SELECT count(*) FROM result),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay)
        ]) AS of
    UNION ALL
    SELECT
        unnest([
            'Observation: ' || kind || ' in another unit than ' || any_value(wanted),
            'Observation: ' || kind || ' with a comparator, such as <',
            'Observation: ' || kind || ' without a value'
        ]),
        unnest([
            count(*) FILTER (WHERE value IS NOT NULL AND comparator IS NULL AND unit IS DISTINCT FROM wanted),
            count(*) FILTER (WHERE value IS NOT NULL AND comparator IS NOT NULL),
            count(*) FILTER (WHERE value IS NULL)
        ]),
        count(*)
    FROM known
    GROUP BY kind
)
SELECT
    what,
    number,
    of,
    what LIKE '%older version%' OR what LIKE '%was replaced by another' OR what LIKE '%is left aside' OR what LIKE '%as test data' OR what LIKE '%entered in error'
    OR what LIKE '%is not final%' OR what LIKE '%about somebody else%' OR what LIKE '%with a comparator%' OR what LIKE '%without a value' OR what LIKE '%has a class other%' OR what LIKE '%is part of another%' AS meant
FROM (
    SELECT what, number, of FROM patient_misses
    UNION ALL
    SELECT what, number, of FROM diagnosis_misses
    UNION ALL
    SELECT what, number, of FROM result_misses
    UNION ALL
    SELECT what, number, of FROM stay_misses
    UNION ALL
    SELECT what, number, of FROM system_misses
    UNION ALL
    SELECT what, number, of FROM value_misses
)
