-- OMOP CDM 5.4: how much of what the tables hold the queries of this recipe leave aside, or may count wrongly, and why. For the site's own
-- eyes: `veilsum participant check --schema` asks it where the dataset names it as misses_file, and no study ever does.
-- Each row: of how many things (of) how many (number) are so (what), and whether that is meant to be
-- left aside; where number is NULL, how many there are.
WITH @concepts
SELECT
    what,
    number,
    of,
    what LIKE '%has no observation period' OR what LIKE '%with an operator%' OR what LIKE '%without a value' OR what LIKE '%of a kind other%' AS meant
FROM (
    SELECT 'person: read' AS what, CAST(NULL AS integer) AS number, count(*) AS of FROM person
    UNION ALL
    SELECT
        'person: stands twice',
        (SELECT count(*) - count(DISTINCT person_id) FROM person),
        (SELECT count(*) FROM person)
    UNION ALL
    SELECT
        'person: has no observation period',
        (SELECT count(DISTINCT person_id) FROM person WHERE person_id NOT IN (SELECT person_id FROM observation_period WHERE person_id IS NOT NULL)),
        (SELECT count(DISTINCT person_id) FROM person)
    UNION ALL
    SELECT
        'person: has no sex that is female or male',
        (SELECT count(DISTINCT person_id) FROM person WHERE coalesce(gender_concept_id, 0) NOT IN (8507, 8532)),
        (SELECT count(DISTINCT person_id) FROM person)
    UNION ALL
    SELECT
        'observation_period: is of no person',
        (SELECT count(*) FROM observation_period WHERE NOT EXISTS (SELECT 1 FROM person WHERE person.person_id = observation_period.person_id)),
        (SELECT count(*) FROM observation_period)
    UNION ALL
    SELECT
        'observation_period: ends before it begins, or never',
        (SELECT count(*) FROM observation_period WHERE NOT coalesce(observation_period_end_date >= observation_period_start_date, false)),
        (SELECT count(*) FROM observation_period)
    UNION ALL
    @table table=condition_occurrence concept=condition_concept_id start=condition_start_date
    UNION ALL
    @table table=drug_exposure concept=drug_concept_id start=drug_exposure_start_date
    UNION ALL
    @table table=measurement concept=measurement_concept_id start=measurement_date
    UNION ALL
    @table table=visit_occurrence concept=visit_concept_id start=visit_start_date
    UNION ALL
    SELECT
        'visit_occurrence: ends before it begins, or never',
        (SELECT count(*) FROM visit_occurrence WHERE NOT coalesce(visit_end_date >= visit_start_date, false)),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'visit_occurrence: is of a kind other than inpatient, outpatient and emergency',
        (SELECT count(*) FROM visit_occurrence WHERE visit_concept_id <> 0 AND visit_concept_id NOT IN (SELECT concept_id FROM concepts)),
        (SELECT count(*) FROM visit_occurrence)
    UNION ALL
    SELECT
        'concept_ancestor: read, without which nothing is known of descendants',
        CAST(NULL AS integer),
        (SELECT count(*) FROM concept_ancestor)
    UNION ALL
    @measure kind=hba1c concept=3004410 unit=8554 called=%
    UNION ALL
    @measure kind=creatinine concept=3016723 unit=8840 called=mg/dL
    UNION ALL
    @measure kind=systolic concept=3004249 unit=8876 called=mmHg
    UNION ALL
    @measure kind=bmi concept=3038553 unit=9531 called=kg/m2
) AS misses
